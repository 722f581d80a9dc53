// The phases of a step, in the order in which they run. One file, though a long one: they share the
// plan of the batch and are read from top to bottom.
#include "step.h"

#include <algorithm>
#include <cassert>

#include "attention.h"
#include "linear.h"
#include "rows.h"

namespace slipstream {

namespace {

// Up to so many rows every thread normalizes and quantizes for itself: cheaper than a barrier.
constexpr int kRowsForEach = 2;

struct Range {
  int first, end;
};

// A thread's even share of `count` pieces.
inline Range share(int count, int thread, int num_threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

class StepRun {
 public:
  StepRun(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
          int num_threads)
      : m_(model), s_(step), ws_(workspace), pool_(pool), num_threads_(num_threads) {
    heads_per_group_ = m_.num_heads / m_.num_kv_heads;
    num_qkv_ = (m_.num_heads + 2 * m_.num_kv_heads) * m_.head_dim;
    reserve();
    plan_rows();
    plan_attention();
  }

  void run(int thread) {
    embed(thread);
    wait();
    for (int layer = 0; layer < m_.num_layers; ++layer) {
      const Layer& l = m_.layers[layer];
      project_qkv(l, layer, thread, input_of(thread, l.qkv, [&](int row, float* y) {
                    rms_norm(residual(row), l.attention_norm, m_.hidden, m_.epsilon, y);
                  }));
      wait();
      attend(layer, thread);
      wait();
      add_to_residual(l.output, thread, input_of(thread, l.output, [&](int row, float* y) {
                        std::memcpy(y, attention(row), sizeof(float) * static_cast<size_t>(l.output.k));
                      }));
      wait();
      gate(l.gate_up, thread, input_of(thread, l.gate_up, [&](int row, float* y) {
             rms_norm(residual(row), l.mlp_norm, m_.hidden, m_.epsilon, y);
           }));
      wait();
      add_to_residual(l.down, thread, input_of(thread, l.down, [&](int row, float* y) {
                        std::memcpy(y, gated(row), sizeof(float) * static_cast<size_t>(l.down.k));
                        if (l.down.hadamard != 0) hadamard(y, l.down.k, l.down.hadamard);
                      }));
      wait();
    }
    project_head(thread);
  }

 private:
  void wait() { pool_.barrier().wait(); }
  float* residual(int row) { return ws_.residual.data() + static_cast<int64_t>(row) * m_.hidden; }
  float* attention(int row) {
    return ws_.attention.data() + static_cast<int64_t>(row) * m_.num_heads * m_.head_dim;
  }
  float* gated(int row) { return ws_.gated.data() + static_cast<int64_t>(row) * m_.intermediate; }
  float* qkv(int row) { return ws_.qkv.data() + static_cast<int64_t>(row) * num_qkv_; }

  void reserve() {
    const auto rows = static_cast<size_t>(s_.num_rows);
    const auto heads = static_cast<size_t>(m_.num_heads * m_.head_dim);
    ws_.residual.reserve(rows * static_cast<size_t>(m_.hidden));
    ws_.qkv.reserve(rows * static_cast<size_t>(num_qkv_));
    ws_.attention.reserve(rows * heads);
    ws_.gated.reserve(rows * static_cast<size_t>(m_.intermediate));
    ws_.query_low.reserve(rows * heads);
    ws_.query_high.reserve(rows * heads);
    ws_.query_scales.reserve(rows * static_cast<size_t>(m_.num_heads));
    const int widest = std::max(std::max(m_.hidden, m_.intermediate), m_.num_heads * m_.head_dim);
    ws_.shared.reserve(s_.num_rows, widest);
    ws_.own.resize(std::max(ws_.own.size(), static_cast<size_t>(num_threads_)));
    ws_.scratch.resize(std::max(ws_.scratch.size(), static_cast<size_t>(num_threads_)));
    for (auto& own : ws_.own) own.reserve(kRowsForEach, widest);
    for (auto& scratch : ws_.scratch) scratch.resize(2 * static_cast<size_t>(widest));
    if (ws_.num_counters < m_.num_layers) {
      ws_.counters = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(m_.num_layers));
      ws_.num_counters = m_.num_layers;
    }
    for (int i = 0; i < m_.num_layers; ++i) ws_.counters[static_cast<size_t>(i)] = 0;
  }

  void plan_rows() {
    const auto rows = static_cast<size_t>(s_.num_rows);
    ws_.positions.resize(rows);
    ws_.row_sequence.resize(rows);
    ws_.row_group.resize(rows);
    ws_.groups.clear();
    const int rows_per_group = std::max(1, kTileRows / heads_per_group_);
    for (int i = 0; i < s_.num_sequences; ++i) {
      const Sequence& sequence = s_.sequences[i];
      for (int r = 0; r < sequence.num_rows; r += rows_per_group) {
        const int count = std::min(rows_per_group, sequence.num_rows - r);
        const int position = sequence.num_computed + r;
        for (int j = 0; j < count; ++j) {
          const auto row = static_cast<size_t>(sequence.first_row + r + j);
          ws_.positions[row] = position + j;
          ws_.row_sequence[row] = i;
          ws_.row_group[row] = static_cast<int32_t>(ws_.groups.size());
        }
        ws_.groups.push_back({i, sequence.first_row + r, count, position, position + count});
      }
    }
  }

  // Few groups with long contexts are split by segment, so that every thread has work.
  void plan_attention() {
    max_num_segments_ = 1;
    for (const auto& group : ws_.groups) {
      max_num_segments_ = std::max(max_num_segments_, num_segments_of(group.end_position - 1));
    }
    num_units_ = static_cast<int>(ws_.groups.size()) * m_.num_kv_heads;
    is_split_ = num_threads_ > 1 && max_num_segments_ > 1 && num_units_ < 16 * num_threads_;
    if (is_split_) {
      ws_.partials.reserve(static_cast<size_t>(num_units_ * max_num_segments_) * kTileRows);
    }
  }

  void embed(int thread) {
    const Range rows = share(s_.num_rows, thread, num_threads_);
    for (int row = rows.first; row < rows.end; ++row) {
      const int32_t token = s_.token_ids[row];
      float* x = residual(row);
      if (m_.embedding != nullptr) {
        std::memcpy(x, m_.embedding + static_cast<int64_t>(token) * m_.hidden,
                    sizeof(float) * static_cast<size_t>(m_.hidden));
      } else {
        embed_from_head(token, x);
      }
    }
  }

  // Row `token` of the tied output head.
  void embed_from_head(int32_t token, float* x) {
    const Linear& head = m_.head;
    const int64_t tile = static_cast<int64_t>(token / 16) * 16 * head.k;
    if (m_.weight_format == kFloat32) {
      const auto* w = static_cast<const float*>(head.weights) + tile + token % 16;
      for (int k = 0; k < m_.hidden; ++k) x[k] = w[static_cast<int64_t>(k) * 16];
      return;
    }
    const auto* w = static_cast<const int8_t*>(head.weights) + tile;
    for (int k = 0; k < head.k; ++k) {
      const int column = head.columns != nullptr ? head.columns[k] : k;
      x[column] = w[(k / 4 * 16 + token % 16) * 4 + k % 4] * head.scales[token];
    }
  }

  // Turn rows into the input of a linear: `fill(row, floats)` makes the floats.
  template <typename Fill>
  Activations& input_of(int thread, const Linear& linear, const Fill& fill) {
    return input_of(thread, linear, s_.num_rows, fill);
  }

  template <typename Fill>
  Activations& input_of(int thread, const Linear& linear, int num_rows, const Fill& fill) {
    const bool is_for_each = num_rows <= kRowsForEach;
    Activations& to = is_for_each ? ws_.own[static_cast<size_t>(thread)] : ws_.shared;
    const Range rows = is_for_each ? Range{0, num_rows} : share(num_rows, thread, num_threads_);
    float* scratch = ws_.scratch[static_cast<size_t>(thread)].data();
    for (int row = rows.first; row < rows.end; ++row) {
      if (m_.weight_format == kFloat32) {
        fill(row, to.floats.data() + static_cast<int64_t>(row) * linear.k);
        continue;
      }
      fill(row, scratch);
      const float* x = scratch;
      if (linear.columns != nullptr) {
        reorder(scratch, linear.columns, linear.k, scratch + linear.k);
        x = scratch + linear.k;
      }
      quantize_row(x, linear.k, linear.num_outliers, to.low.data() + static_cast<int64_t>(row) * linear.k,
                   to.high.data() + row * kNumOutliers, to.scales.data() + row);
    }
    if (!is_for_each) wait();
    return to;
  }

  template <typename Epilogue>
  void multiply(const Linear& linear, Activations& x, int num_rows, Range pairs,
                const Epilogue& epilogue) {
    if (m_.weight_format == kFloat32) {
      linear_float(linear, x.floats.data(), linear.k, num_rows, pairs.first, pairs.end, epilogue);
    } else {
      linear_int8(linear, x.quantized(), num_rows, pairs.first, pairs.end, epilogue);
    }
  }

  // Whole heads a thread, so that what follows a projection stays with who made it.
  void project_qkv(const Layer& l, int layer, int thread, Activations& x) {
    const int num_heads = m_.num_heads + 2 * m_.num_kv_heads;
    const int pairs = m_.head_dim / kPair;
    const Range heads = share(num_heads, thread, num_threads_);
    multiply(l.qkv, x, s_.num_rows, {heads.first * pairs, heads.end * pairs},
             [&](int row, int pair, F16 a, F16 b) {
               float* y = qkv(row) + pair * kPair;
               a.store(y);
               b.store(y + 16);
             });
    for (int head = heads.first; head < heads.end; ++head) {
      for (int row = 0; row < s_.num_rows; ++row) {
        float* x_head = qkv(row) + static_cast<int64_t>(head) * m_.head_dim;
        if (head < m_.num_heads) {
          finish_query(row, head, x_head);
        } else if (head < m_.num_heads + m_.num_kv_heads) {
          finish_key(l, layer, row, head - m_.num_heads, x_head);
        } else {
          finish_value(layer, row, head - m_.num_heads - m_.num_kv_heads, x_head);
        }
      }
    }
  }

  void rotate_row(int row, float* x) {
    const int64_t at = static_cast<int64_t>(ws_.positions[static_cast<size_t>(row)]) * (m_.head_dim / 2);
    rotate(x, m_.head_dim, m_.cosines + at, m_.sines + at);
  }

  void finish_query(int row, int head, float* x) {
    const int dim = m_.head_dim;
    rotate_row(row, x);
    const F16 scale = F16::set(1.0f / std::sqrt(static_cast<float>(dim)));
    for (int d = 0; d < dim; d += kLanes) (F16::load(x + d) * scale).store(x + d);
    if (m_.kv_format == kFloat32) return;
    hadamard(x, dim, dim);
    const QueryGroup& group = ws_.groups[static_cast<size_t>(ws_.row_group[static_cast<size_t>(row)])];
    const int kv_head = head / heads_per_group_;
    const int64_t query =
        (static_cast<int64_t>(group.first_row) * m_.num_kv_heads +
         static_cast<int64_t>(kv_head) * group.num_rows + (row - group.first_row)) *
            heads_per_group_ + head % heads_per_group_;
    // 16 bits: queries are never stored, so their precision is free.
    const float largest = max_abs(x, dim) / 32512.0f;
    const F16 inverse = F16::set(largest > 0.0f ? 1.0f / largest : 0.0f);
    for (int d = 0; d < dim; d += kLanes) {
      split_planes(quantized(x + d, inverse, 32512), ws_.query_low.data() + query * dim + d,
                   ws_.query_high.data() + query * dim + d);
    }
    ws_.query_scales.data()[query] = largest;
  }

  uint8_t* block_of(int row) {
    const Sequence& sequence = s_.sequences[ws_.row_sequence[static_cast<size_t>(row)]];
    const int block_idx = ws_.positions[static_cast<size_t>(row)] / kBlockSize;
    return s_.kv + s_.block_tables[sequence.first_block + block_idx] * s_.block_bytes;
  }

  float* float_slot(int layer, int row, int kv_head, int which) {
    const int64_t plane = static_cast<int64_t>(m_.num_kv_heads) * kBlockSize * m_.head_dim;
    const int slot = ws_.positions[static_cast<size_t>(row)] % kBlockSize;
    return reinterpret_cast<float*>(block_of(row)) + (2LL * layer + which) * plane +
           (static_cast<int64_t>(kv_head) * kBlockSize + slot) * m_.head_dim;
  }

  void finish_key(const Layer& l, int layer, int row, int kv_head, float* x) {
    const int dim = m_.head_dim;
    rotate_row(row, x);
    if (m_.kv_format == kFloat32) {
      std::memcpy(float_slot(layer, row, kv_head, 0), x, sizeof(float) * static_cast<size_t>(dim));
      return;
    }
    // Rotated, then without its mean: both leave the softmax as it is and take the outliers away.
    hadamard(x, dim, dim);
    if (l.key_mean != nullptr) {
      for (int d = 0; d < dim; d += kLanes) {
        (F16::load(x + d) - F16::load(l.key_mean + kv_head * dim + d)).store(x + d);
      }
    }
    const int slot = ws_.positions[static_cast<size_t>(row)] % kBlockSize;
    auto* block = reinterpret_cast<int8_t*>(block_of(row) + KvPlace().offset_of(m_, layer, kv_head));
    int8_t* keys = block + slot / 16 * 16 * dim + slot % 16 * 4;
    store_int8(x, reinterpret_cast<float*>(block + 2 * kBlockSize * dim) + slot, [&](int d) {
      return keys + d / 4 * 64 + d % 4;
    });
  }

  void finish_value(int layer, int row, int kv_head, float* x) {
    const int dim = m_.head_dim;
    if (m_.kv_format == kFloat32) {
      std::memcpy(float_slot(layer, row, kv_head, 1), x, sizeof(float) * static_cast<size_t>(dim));
      return;
    }
    const int slot = ws_.positions[static_cast<size_t>(row)] % kBlockSize;
    auto* block = reinterpret_cast<int8_t*>(block_of(row) + KvPlace().offset_of(m_, layer, kv_head));
    int8_t* values = block + kBlockSize * dim + slot / 4 * dim * 4 + slot % 4;
    store_int8(x, reinterpret_cast<float*>(block + 2 * kBlockSize * dim) + kBlockSize + slot,
               [&](int d) { return values + d * 4; });
  }

  template <typename Place>
  void store_int8(const float* x, float* scale, const Place& place) {
    const float largest = max_abs(x, m_.head_dim) / 127.0f;
    const F16 inverse = F16::set(largest > 0.0f ? 1.0f / largest : 0.0f);
    *scale = largest;
    for (int d = 0; d < m_.head_dim; d += kLanes) {
      int8_t bytes[kLanes];
      store_bytes(quantized(x + d, inverse, 127), bytes);
      for (int i = 0; i < kLanes; ++i) *place(d + i) = bytes[i];
    }
  }

  void attend(int layer, int thread) {
    const AttentionInput in{m_,
                            s_,
                            layer,
                            ws_.qkv.data(),
                            num_qkv_,
                            ws_.query_low.data(),
                            ws_.query_high.data(),
                            ws_.query_scales.data()};
    auto& counter = ws_.counters[static_cast<size_t>(layer)];
    const int num_pieces = is_split_ ? num_units_ * max_num_segments_ : num_units_;
    Partial partials[2][kTileRows];
    int num_configured = 0;
    for (int piece = counter.fetch_add(1); piece < num_pieces; piece = counter.fetch_add(1)) {
      // The longest contexts come last in a prompt: start with them.
      const int unit = num_units_ - 1 - (is_split_ ? piece / max_num_segments_ : piece);
      const QueryGroup& group = ws_.groups[static_cast<size_t>(unit / m_.num_kv_heads)];
      const int kv_head = unit % m_.num_kv_heads;
      configure(group, &num_configured);
      if (is_split_) {
        const int segment = piece % max_num_segments_;
        if (segment >= num_segments_of(group.end_position - 1)) continue;
        attend_segment(in, group, kv_head, segment, partials_of(unit, segment));
      } else {
        attend_all(in, group, kv_head, partials);
      }
    }
    if (!is_split_) return;
    wait();
    const Range units = share(num_units_, thread, num_threads_);
    for (int unit = units.first; unit < units.end; ++unit) {
      const QueryGroup& group = ws_.groups[static_cast<size_t>(unit / m_.num_kv_heads)];
      Partial* merged = partials_of(unit, 0);
      for (int i = 1; i < num_segments_of(group.end_position - 1); ++i) {
        merge_rows(group, i, merged, partials_of(unit, i));
      }
      write_rows(group, unit % m_.num_kv_heads, merged);
    }
  }

  void configure(const QueryGroup& group, int* num_configured) {
#if defined(__AMX_INT8__)
    const int num_queries = group.num_rows * heads_per_group_;
    if (m_.kv_format == kInt8 && num_queries != *num_configured) {
      configure_attention_tiles(num_queries);
      *num_configured = num_queries;
    }
#else
    (void)group;
    (void)num_configured;
#endif
  }

  Partial* partials_of(int unit, int segment) {
    return ws_.partials.data() +
           (static_cast<int64_t>(unit) * max_num_segments_ + segment) * kTileRows;
  }

  void attend_all(const AttentionInput& in, const QueryGroup& group, int kv_head,
                  Partial (*partials)[kTileRows]) {
    attend_segment(in, group, kv_head, 0, partials[0]);
    for (int i = 1; i < num_segments_of(group.end_position - 1); ++i) {
      attend_segment(in, group, kv_head, i, partials[1]);
      merge_rows(group, i, partials[0], partials[1]);
    }
    write_rows(group, kv_head, partials[0]);
  }

  void merge_rows(const QueryGroup& group, int segment, Partial* into, const Partial* next) {
    for (int i = 0; i < group.num_rows * heads_per_group_; ++i) {
      const int position = group.first_position + i / heads_per_group_;
      if (segment < num_segments_of(position)) merge(into[i], next[i], m_.head_dim);
    }
  }

  void write_rows(const QueryGroup& group, int kv_head, const Partial* partials) {
    for (int i = 0; i < group.num_rows * heads_per_group_; ++i) {
      const int head = kv_head * heads_per_group_ + i % heads_per_group_;
      float* y = attention(group.first_row + i / heads_per_group_) +
                 static_cast<int64_t>(head) * m_.head_dim;
      const F16 scale = F16::set(1.0f / partials[i].sum);
      for (int d = 0; d < m_.head_dim; d += kLanes) {
        (F16::load(partials[i].values + d) * scale).store(y + d);
      }
    }
  }

  void add_to_residual(const Linear& linear, int thread, Activations& x) {
    multiply(linear, x, s_.num_rows, share(linear.n / kPair, thread, num_threads_),
             [&](int row, int pair, F16 a, F16 b) {
               float* y = residual(row) + pair * kPair;
               (F16::load(y) + a).store(y);
               (F16::load(y + 16) + b).store(y + 16);
             });
  }

  void gate(const Linear& linear, int thread, Activations& x) {
    multiply(linear, x, s_.num_rows, share(linear.n / kPair, thread, num_threads_),
             [&](int row, int pair, F16 gate, F16 up) {
               (silu(gate) * up).store(gated(row) + pair * 16);
             });
  }

  void project_head(int thread) {
    if (s_.num_logit_rows == 0) return;
    Activations& x = input_of(thread, m_.head, s_.num_logit_rows, [&](int i, float* y) {
      rms_norm(residual(s_.logit_rows[i]), m_.final_norm, m_.hidden, m_.epsilon, y);
    });
    multiply(m_.head, x, s_.num_logit_rows, share(m_.head.n / kPair, thread, num_threads_),
             [&](int row, int pair, F16 a, F16 b) {
               float* y = s_.logits + static_cast<int64_t>(row) * m_.vocab + pair * kPair;
               store_logits(y, m_.vocab - pair * kPair, a, b);
             });
  }

  static void store_logits(float* y, int num_left, F16 a, F16 b) {
    if (num_left >= kPair) {
      a.store(y);
      b.store(y + 16);
      return;
    }
    a.store_first(y, std::min(num_left, 16));
    if (num_left > 16) b.store_first(y + 16, num_left - 16);
  }

  const Model& m_;
  const Step& s_;
  Workspace& ws_;
  ThreadPool& pool_;
  int num_threads_;
  int heads_per_group_;
  int num_qkv_;
  int num_units_ = 0;
  int max_num_segments_ = 1;
  bool is_split_ = false;
};

}  // namespace

void run_step(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool) {
  const int num_threads = std::clamp(static_cast<int>(step.num_threads), 1, pool.num_threads());
  StepRun run(model, step, workspace, pool, num_threads);
  pool.run(num_threads, [&](int thread) { run.run(thread); });
}

}  // namespace slipstream
