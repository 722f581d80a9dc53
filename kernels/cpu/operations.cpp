#include "operations.h"

#include <chrono>
#include <exception>

#include "attention_run.h"
#include "engine.h"
#include "export.h"
#include "linear_quantized.h"
#include "rows.h"

namespace slipstream::operations {

namespace {

inline float* row_of(float* x, int row, int n) { return x + static_cast<int64_t>(row) * n; }
inline const float* row_of(const float* x, int row, int n) { return x + static_cast<int64_t>(row) * n; }

template <int kCount>
inline void silu_tiles(const float* x, float* y) {
  F16 gates[kCount];
  for (int i = 0; i < kCount; ++i) gates[i] = F16::load(x + 2 * i * kLanes);
  silu(gates);
  for (int i = 0; i < kCount; ++i) {
    (gates[i] * F16::load(x + (2 * i + 1) * kLanes)).store(y + i * kLanes);
  }
}

// The epilogue that stores and does nothing else.
auto store_to(float* y, int num_columns) {
  return [=](int row, int pair, auto& a, auto& b) {
    for (int r = 0; r < count_of(a); ++r) {
      store_pair(row_of(y, row + r, num_columns) + pair * kPair, num_columns - pair * kPair, a[r], b[r]);
    }
  };
}

}  // namespace

void embed(Share share, const Model& model, const int32_t* token_ids, int num_rows, float* y) {
  const Range rows = share.of(num_rows);
  for (int row = rows.first; row < rows.end; ++row) {
    slipstream::embed(model, token_ids[row], row_of(y, row, model.hidden));
  }
}

void select(Share share, const float* x, const int32_t* rows, int num_rows, int n, float* y) {
  const Range part = share.of(num_rows);
  for (int i = part.first; i < part.end; ++i) {
    std::memcpy(row_of(y, i, n), row_of(x, rows[i], n), sizeof(float) * static_cast<size_t>(n));
  }
}

void rms_norm(Share share, const float* x, int num_rows, const float* weight, int n, float epsilon,
              float* y) {
  const Range rows = share.of(num_rows);
  for (int row = rows.first; row < rows.end; ++row) {
    slipstream::rms_norm(row_of(x, row, n), weight, n, epsilon, row_of(y, row, n));
  }
}

void quantize(Share share, const Linear& linear, const float* x, int num_rows, float* scratch,
              const QuantizedRows& y) {
  const Range rows = share.of(num_rows);
  for (int row = rows.first; row < rows.end; ++row) {
    quantize_input(linear, row_of(x, row, linear.k), scratch, y.low + static_cast<int64_t>(row) * linear.k,
                   y.high + static_cast<int64_t>(row) * linear.num_outliers, y.scales + row);
  }
}

void linear_float32(Share share, const Linear& linear, const float* x, int num_rows, int num_columns,
                    float* y) {
  const Range pairs = share.of(linear.n / kPair);
  linear_float<float>(linear, x, num_rows, pairs.first, pairs.end, store_to(y, num_columns));
}

void linear_bf16(Share share, const Linear& linear, const float* x, int num_rows, int num_columns,
                 float* y) {
  const Range pairs = share.of(linear.n / kPair);
  linear_float<Bf16>(linear, x, num_rows, pairs.first, pairs.end, store_to(y, num_columns));
}

void linear_quantized(Share share, const Linear& linear, const QuantizedRows& x, int num_rows,
                      int8_t* scratch, int num_columns, float* y) {
  const Range pairs = share.of(linear.n / kPair);
  slipstream::linear_quantized(linear, x, num_rows, pairs.first, pairs.end, scratch,
                               store_to(y, num_columns));
}

void silu_and_multiply(Share share, const float* x, int num_rows, int n, float* y) {
  constexpr int kTogether = 4;
  const Range rows = share.of(num_rows);
  for (int row = rows.first; row < rows.end; ++row) {
    const float* from = row_of(x, row, 2 * n);
    float* to = row_of(y, row, n);
    int i = 0;
    for (; i + kTogether * kLanes <= n; i += kTogether * kLanes) silu_tiles<kTogether>(from + 2 * i, to + i);
    for (; i < n; i += kLanes) silu_tiles<1>(from + 2 * i, to + i);
  }
}

void add(Share share, const float* x, int num_rows, int n, float* y) {
  const Range rows = share.of(num_rows);
  for (int64_t i = static_cast<int64_t>(rows.first) * n; i < static_cast<int64_t>(rows.end) * n; i += kLanes) {
    (F16::load(y + i) + F16::load(x + i)).store(y + i);
  }
}

void finish_heads(Share share, const Model& model, const Step& step, const Plan& plan, int layer_idx,
                  const float* qkv, const Queries& to) {
  const Range heads = {0, model.num_heads + 2 * model.num_kv_heads};
  slipstream::finish_heads(model, step, plan, model.layers[layer_idx], layer_idx, qkv, to,
                           share.of(step.num_rows), heads);
}

}  // namespace slipstream::operations

// The C interface that `operations.py` calls. Each function runs an operation `num_times` times, one
// run after the other, and returns the seconds of them all: from all threads standing at the barrier
// to all being done. Less than 0 when there is no memory.

namespace {

using slipstream::Engine;
using slipstream::Linear;
using slipstream::Model;
using slipstream::QuantizedRows;
using slipstream::Step;
using slipstream::operations::Share;
using Clock = std::chrono::steady_clock;

// `prepare(engine)`, then `part(engine, share, run)` for each run.
template <typename Prepare, typename Part>
double seconds_of(void* handle, int num_times, const Prepare& prepare, const Part& part) {
  try {
    auto& engine = *static_cast<Engine*>(handle);
    const int num_threads = engine.pool.num_threads();
    Clock::time_point begin, end;
    prepare(engine);
    engine.pool.run(num_threads, [&](int thread) {
      engine.pool.barrier().wait();
      if (thread == 0) begin = Clock::now();
      for (int run = 0; run < num_times; ++run) {
        part(engine, Share{thread, num_threads}, run);
        engine.pool.barrier().wait();
      }
      if (thread == 0) end = Clock::now();
    });
    return std::chrono::duration<double>(end - begin).count();
  } catch (const std::exception&) {
    return -1.0;
  }
}

template <typename Part>
double seconds_of(void* handle, int num_times, const Part& part) {
  return seconds_of(handle, num_times, [](Engine&) {}, [&](Engine&, Share share, int run) { part(share, run); });
}

}  // namespace

SLIPSTREAM_EXPORT double slipstream_embed(void* engine, int32_t num_times, const Model* model,
                                          const int32_t* token_ids, int32_t num_rows, float* y) {
  return seconds_of(engine, num_times, [&](Share share, int) {
    slipstream::operations::embed(share, *model, token_ids, num_rows, y);
  });
}

SLIPSTREAM_EXPORT double slipstream_rms_norm(void* engine, int32_t num_times, const float* x,
                                             int32_t num_rows, const float* weight, int32_t n,
                                             float epsilon, float* y) {
  return seconds_of(engine, num_times, [&](Share share, int) {
    slipstream::operations::rms_norm(share, x, num_rows, weight, n, epsilon, y);
  });
}

SLIPSTREAM_EXPORT double slipstream_quantize(void* engine, int32_t num_times, const Linear* linear,
                                             const float* x, int32_t num_rows, int8_t* low,
                                             int8_t* high, float* scales) {
  const auto prepare = [&](Engine& e) {
    e.workspace.reserve_scratch(e.pool.num_threads(), linear->k);
  };
  return seconds_of(engine, num_times, prepare, [&](Engine& e, Share share, int) {
    float* scratch = e.workspace.scratch[static_cast<size_t>(share.thread)].data();
    slipstream::operations::quantize(share, *linear, x, num_rows, scratch, {low, high, scales});
  });
}

// Run i multiplies with matrix i modulo `num_linears`; all have the same sizes.
SLIPSTREAM_EXPORT double slipstream_linear_float32(void* engine, int32_t num_times,
                                                   const Linear* linears, int32_t num_linears,
                                                   const float* x, int32_t num_rows,
                                                   int32_t num_columns, float* y) {
  return seconds_of(engine, num_times, [&](Share share, int run) {
    const Linear& linear = linears[run % num_linears];
    slipstream::operations::linear_float32(share, linear, x, num_rows, num_columns, y);
  });
}

SLIPSTREAM_EXPORT double slipstream_linear_bf16(void* engine, int32_t num_times, const Linear* linears,
                                                int32_t num_linears, const float* x,
                                                int32_t num_rows, int32_t num_columns, float* y) {
  return seconds_of(engine, num_times, [&](Share share, int run) {
    const Linear& linear = linears[run % num_linears];
    slipstream::operations::linear_bf16(share, linear, x, num_rows, num_columns, y);
  });
}

// The planes have rows up to a multiple of 32, though what lies beyond `num_rows` may be anything.
SLIPSTREAM_EXPORT double slipstream_linear_quantized(void* engine, int32_t num_times,
                                                     const Linear* linears, int32_t num_linears,
                                                     int8_t* low, int8_t* high, float* scales,
                                                     int32_t num_rows, int32_t num_columns, float* y) {
  const QuantizedRows x{low, high, scales};
  const auto prepare = [&](Engine& e) {
    e.workspace.reserve_linear_scratch(e.pool.num_threads(),
                                       slipstream::linear_scratch_bytes(linears[0], num_rows));
  };
  return seconds_of(engine, num_times, prepare, [&](Engine& e, Share share, int run) {
    const Linear& linear = linears[run % num_linears];
    int8_t* scratch = e.workspace.linear_scratch[static_cast<size_t>(share.thread)].data();
    slipstream::operations::linear_quantized(share, linear, x, num_rows, scratch, num_columns, y);
  });
}

SLIPSTREAM_EXPORT double slipstream_silu_and_multiply(void* engine, int32_t num_times, const float* x,
                                                      int32_t num_rows, int32_t n, float* y) {
  return seconds_of(engine, num_times, [&](Share share, int) {
    slipstream::operations::silu_and_multiply(share, x, num_rows, n, y);
  });
}

SLIPSTREAM_EXPORT double slipstream_add(void* engine, int32_t num_times, const float* x,
                                        int32_t num_rows, int32_t n, float* y) {
  return seconds_of(engine, num_times, [&](Share share, int) {
    slipstream::operations::add(share, x, num_rows, n, y);
  });
}

// Run i is about layer `layer_idx` + i, modulo their number; so is that of attention. Queries come out
// as float32 [rows][heads][dim], or as planes and scales [groups of rows] where KV is int8.
SLIPSTREAM_EXPORT double slipstream_finish_heads(void* engine, int32_t num_times, const Model* model,
                                                 const Step* step, int32_t layer_idx, const float* qkv,
                                                 float* queries, int8_t* planes, float* scales) {
  const slipstream::Queries to{queries, model->num_heads * model->head_dim, planes, scales};
  const auto prepare = [&](Engine& e) { e.workspace.plan.make(*model, *step, e.pool.num_threads()); };
  return seconds_of(engine, num_times, prepare, [&](Engine& e, Share share, int run) {
    const int layer = (layer_idx + run) % model->num_layers;
    slipstream::operations::finish_heads(share, *model, *step, e.workspace.plan, layer, qkv, to);
  });
}

SLIPSTREAM_EXPORT double slipstream_attend(void* engine, int32_t num_times, const Model* model,
                                           const Step* step, int32_t layer_idx, const float* queries,
                                           const int8_t* planes, const float* scales, float* y) {
  const auto prepare = [&](Engine& e) {
    e.workspace.plan.make(*model, *step, e.pool.num_threads());
    e.workspace.reserve_attention(*model, num_times);
  };
  return seconds_of(engine, num_times, prepare, [&](Engine& e, Share, int run) {
    const int layer = (layer_idx + run) % model->num_layers;
    const int stride = model->num_heads * model->head_dim;
    const slipstream::AttentionInput input{*model, *step, layer, queries, stride, planes, scales};
    slipstream::AttentionRun(input, e.workspace, run, y).run();
  });
}
