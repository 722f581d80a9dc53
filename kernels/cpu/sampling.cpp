// The C interface of the sampler's passes; `sampling.py` calls it.
#include <exception>

#include "contenders.h"
#include "export.h"
#include "largest.h"
#include "nucleus.h"

// The peaks of rows [num_rows, size], one after another.
SLIPSTREAM_EXPORT void slipstream_find_peaks(const float* rows, int64_t num_rows, int64_t size,
                                             int64_t* token_ids, float* logits) {
  for (int64_t i = 0; i < num_rows; ++i) {
    const slipstream::Peak peak = slipstream::find_peak(rows + i * size, size);
    token_ids[i] = peak.token_id;
    logits[i] = peak.logit;
  }
}

// The ids of the `count` largest. 0, or 1 when there is no memory for it.
SLIPSTREAM_EXPORT int slipstream_find_largest(const float* row, int64_t size, int64_t count,
                                              int64_t* token_ids) {
  try {
    slipstream::find_largest(row, size, count, token_ids);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

SLIPSTREAM_EXPORT double slipstream_total_weight(const float* row, int64_t size, double maximum,
                                                 double temperature) {
  return slipstream::total_weight(row, size, {maximum, 1.0 / temperature});
}

// The last token of the nucleus. 0, or 1 when roundings could have it end elsewhere, or without
// memory.
SLIPSTREAM_EXPORT int slipstream_find_nucleus(const float* row, int64_t size, double maximum,
                                              double temperature, double top_p, double error,
                                              int64_t* token_id) {
  try {
    slipstream::Floor floor = {0, 0};
    slipstream::Nucleus nucleus(row, size, maximum, temperature);
    const bool is_certain = nucleus.find(top_p, error, &floor);
    *token_id = floor.token_id;
    return is_certain ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

// Of the tokens down to a floor. Write up to 64 ids, ascending, and return how many; -1 when more are
// as good as each other.
SLIPSTREAM_EXPORT int64_t slipstream_find_contenders(const float* row, int64_t size,
                                                     int64_t peak_token_id, double temperature,
                                                     uint64_t seed, uint64_t output_position,
                                                     float floor_logit, int64_t floor_token_id,
                                                     int64_t* token_ids) {
  using slipstream::Contenders;
  const slipstream::Peak peak = {peak_token_id, row[peak_token_id]};
  const slipstream::Floor floor = {floor_logit, floor_token_id};
  Contenders contenders(peak, temperature, slipstream::Noise(seed, output_position), floor);
  bool has_room = true;
  slipstream::for_each_vector(row, size, [&](const float* logits, int64_t first_token_id) {
    has_room = has_room && contenders.add(logits, first_token_id);
  });
  return has_room ? contenders.take(token_ids) : -1;
}
