// The phases of a step, in the order in which they run. One file, though a long one: they share the
// plan of the batch and are read from top to bottom.
#include "step.h"

#include <algorithm>
#include <cassert>

#include "attention.h"
#include "heads.h"
#include "integrity.h"
#include "linear.h"
#include "rows.h"

namespace slipstream {

namespace {

// Up to so many rows every thread normalizes and quantizes for itself: cheaper than a barrier.
constexpr int kRowsForEach = 2;

// A batch is split over the threads by columns: each computes some outputs of all rows, and the
// weights are read once. From so many rows a thread on it is split by rows: the weights are read by
// every thread, but activations never travel between cores.
constexpr int kOwnRows = 64;
// So many rows go through several matrices before the next ones do: their activations fit the
// second-level cache.
constexpr int kPanelRows = 128;

struct Range {
  int first, end;
  int count() const { return end - first; }
};

// What a thread computes of a phase: its own rows, or its share of the columns of all rows.
struct Part {
  int thread;
  Range rows;
  bool has_own_rows;
};

template <int kCount>
constexpr int count_of(const F16 (&)[kCount]) {
  return kCount;
}

// A thread's even share of `count` pieces.
inline Range share(int count, int thread, int num_threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

class StepRun {
 public:
  StepRun(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
          int num_threads)
      : m_(model), s_(step), ws_(workspace), plan_(workspace.plan), pool_(pool), num_threads_(num_threads) {
    check_integrity(model, step);
    heads_per_group_ = m_.num_heads / m_.num_kv_heads;
    num_qkv_ = (m_.num_heads + 2 * m_.num_kv_heads) * m_.head_dim;
    ws_.plan.make(model, step, num_threads);
    reserve();
  }

  void run(int thread) {
    const Part all = part_of(thread);
    embed(all);
    if (!all.has_own_rows) wait();
    for (int layer = 0; layer < m_.num_layers; ++layer) {
      const Layer& l = m_.layers[layer];
      each_panel(all, [&](const Part& part) { project_qkv(l, layer, part); });
      wait();
      attend(layer);
      wait();
      each_panel(all, [&](const Part& part) { finish_layer(l, part); });
    }
    if (all.has_own_rows) wait();
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
    ws_.query_planes.reserve(2 * rows * heads);
    ws_.query_scales.reserve(rows * static_cast<size_t>(m_.num_heads));
    const int widest = std::max(std::max(m_.hidden, m_.intermediate), m_.num_heads * m_.head_dim);
    ws_.shared.reserve(s_.num_rows, widest);
    ws_.own.resize(std::max(ws_.own.size(), static_cast<size_t>(num_threads_)));
    ws_.scratch.resize(std::max(ws_.scratch.size(), static_cast<size_t>(num_threads_)));
    for (auto& own : ws_.own) own.reserve(std::min(s_.num_rows, kPanelRows), widest);
    for (auto& scratch : ws_.scratch) scratch.resize(2 * static_cast<size_t>(widest));
    if (plan_.is_split) ws_.reserve_partials(plan_.num_units(m_), plan_.max_num_segments);
    if (ws_.num_counters < m_.num_layers) {
      ws_.counters = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(m_.num_layers));
      ws_.num_counters = m_.num_layers;
    }
    for (int i = 0; i < m_.num_layers; ++i) ws_.counters[static_cast<size_t>(i)] = 0;
  }

  Part part_of(int thread) const {
    if (s_.num_rows < kOwnRows * num_threads_) return {thread, {0, s_.num_rows}, false};
    // Whole tile pairs: no two threads write to one.
    const Range blocks = share((s_.num_rows + kPairRows - 1) / kPairRows, thread, num_threads_);
    return {thread,
            {blocks.first * kPairRows, std::min(blocks.end * kPairRows, static_cast<int>(s_.num_rows))},
            true};
  }

  template <typename Run>
  static void each_panel(const Part& all, const Run& run) {
    if (!all.has_own_rows) return run(all);
    for (int row = all.rows.first; row < all.rows.end; row += kPanelRows) {
      run(Part{all.thread, {row, std::min(row + kPanelRows, all.rows.end)}, true});
    }
  }

  // Where threads share rows, all wait for each other.
  void meet(const Part& part) {
    if (!part.has_own_rows) wait();
  }
  Range columns(const Part& part, int count) const {
    return part.has_own_rows ? Range{0, count} : share(count, part.thread, num_threads_);
  }
  Range rows_to_prepare(const Part& part) const {
    return part.has_own_rows ? part.rows : share(part.rows.count(), part.thread, num_threads_);
  }

  void finish_layer(const Layer& l, const Part& part) {
    add_to_residual(l.output, part,
                    input_of(part, l.output, [&](int row, float*) { return attention(row); }));
    meet(part);
    gate(l.gate_up, part, input_of(part, l.gate_up, [&](int row, float* y) {
           return rms_norm(residual(row), l.mlp_norm, m_.hidden, m_.epsilon, y);
         }));
    meet(part);
    add_to_residual(l.down, part,
                    input_of(part, l.down, [&](int row, float*) { return gated(row); }));
    meet(part);
  }

  void embed(const Part& part) {
    const Range rows = rows_to_prepare(part);
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

  // Turn rows into the input of a linear. `make(row, scratch)` returns a row's floats, which may lie
  // in the scratch.
  template <typename Make>
  Activations& input_of(const Part& part, const Linear& linear, const Make& make) {
    const auto thread = static_cast<size_t>(part.thread);
    const bool is_for_each = part.has_own_rows || part.rows.count() <= kRowsForEach;
    Activations& to = is_for_each ? ws_.own[thread] : ws_.shared;
    const Range rows = is_for_each ? part.rows : rows_to_prepare(part);
    float* scratch = ws_.scratch[thread].data();
    for (int row = rows.first; row < rows.end; ++row) {
      const float* x = make(row, scratch);
      const int at = row - part.rows.first;
      if (m_.weight_format == kFloat32) {
        std::memcpy(to.floats.data() + static_cast<int64_t>(at) * linear.k, x,
                    sizeof(float) * static_cast<size_t>(linear.k));
      } else {
        quantize(linear, x, at, scratch + linear.k, to);
      }
    }
    if (!is_for_each) wait();
    return to;
  }

  static void quantize(const Linear& linear, const float* x, int row, float* scratch, Activations& to) {
    int8_t* low = to.low.data() + static_cast<int64_t>(row) * linear.k;
    float* scale = to.scales.data() + row;
    if (linear.hadamard != 0) return rotate_and_quantize_row(x, linear.k, scratch, low, scale);
    if (linear.columns != nullptr) {
      reorder(x, linear.columns, linear.k, scratch);
      x = scratch;
    }
    quantize_row(x, linear.k, linear.num_outliers, low, to.high.data() + row * kNumOutliers, scale);
  }

  template <typename Epilogue>
  void multiply(const Linear& linear, Activations& x, Range rows, Range pairs, const Epilogue& epilogue) {
    const auto at_row = [&](int row, int pair, auto& a, auto& b) {
      epilogue(rows.first + row, pair, a, b);
    };
    if (m_.weight_format == kFloat32) {
      linear_float(linear, x.floats.data(), rows.count(), pairs.first, pairs.end, at_row);
    } else {
      linear_int8(linear, x.quantized(), rows.count(), pairs.first, pairs.end, at_row);
    }
  }

  // Whole heads a thread, so that what follows a projection stays with who made it.
  void project_qkv(const Layer& l, int layer, const Part& part) {
    Activations& x = input_of(part, l.qkv, [&](int row, float* y) {
      return rms_norm(residual(row), l.attention_norm, m_.hidden, m_.epsilon, y);
    });
    const int pairs = m_.head_dim / kPair;
    const Range heads = columns(part, m_.num_heads + 2 * m_.num_kv_heads);
    multiply(l.qkv, x, part.rows, {heads.first * pairs, heads.end * pairs},
             [&](int row, int pair, auto& a, auto& b) {
               for (int r = 0; r < count_of(a); ++r) {
                 float* y = qkv(row + r) + pair * kPair;
                 a[r].store(y);
                 b[r].store(y + 16);
               }
             });
    switch (m_.head_dim) {
      case 64:
        return finish_heads<4>(l, layer, part.rows, heads);
      case 128:
        return finish_heads<8>(l, layer, part.rows, heads);
      default:
        return finish_heads<16>(l, layer, part.rows, heads);
    }
  }

  template <int kVectors>
  void finish_heads(const Layer& l, int layer, Range batch_rows, Range heads) {
    HeadRows<kVectors> rows(m_, s_, ws_, l, layer);
    for (int row = batch_rows.first; row < batch_rows.end; ++row) {
      rows.set_row(row);
      for (int head = heads.first; head < heads.end; ++head) {
        rows.finish(head, qkv(row) + static_cast<int64_t>(head) * m_.head_dim);
      }
    }
  }

  void attend(int layer) {
    const AttentionInput in{m_, s_, layer, ws_.qkv.data(), num_qkv_, ws_.query_planes.data(),
                            ws_.query_scales.data()};
    auto& counter = ws_.counters[static_cast<size_t>(layer)];
    const auto num_items = static_cast<int>(plan_.items.size());
    int num_configured = 0;
    int item_idx = counter.fetch_add(1);
    while (item_idx < num_items) {
      const AttentionItem& item = plan_.items[static_cast<size_t>(item_idx)];
      // One item ahead.
      item_idx = counter.fetch_add(1);
      Upcoming upcoming;
      if (item_idx < num_items) {
        const AttentionItem& next = plan_.items[static_cast<size_t>(item_idx)];
        upcoming = Upcoming(in, plan_.groups[static_cast<size_t>(next.group)], next);
      }
      configure(plan_.groups[static_cast<size_t>(item.group)], &num_configured);
      for (int head = item.first_head; head < item.end_head; ++head) {
        attend_head(in, item, head, upcoming);
      }
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
           (static_cast<int64_t>(unit) * plan_.max_num_segments + segment) * kTileRows;
  }

  void attend_head(const AttentionInput& in, const AttentionItem& item, int head, Upcoming& upcoming) {
    const QueryGroup& group = plan_.groups[static_cast<size_t>(item.group)];
    if (plan_.is_split) {
      const int unit = item.group * m_.num_kv_heads + head;
      attend_segment(in, {&group, head, item.first_segment}, upcoming,
                     partials_of(unit, item.first_segment));
      return finish_segment(group, head, unit, in.layer);
    }
    Partial merged[kTileRows], next[kTileRows];
    attend_segment(in, {&group, head, 0}, upcoming, merged);
    for (int segment = 1; segment < item.end_segment; ++segment) {
      attend_segment(in, {&group, head, segment}, upcoming, next);
      merge_rows(group, segment, merged, next);
    }
    write_rows(group, head, merged);
  }

  // Whoever computes the last segment of a group and head merges them all, in ascending order.
  void finish_segment(const QueryGroup& group, int head, int unit, int layer) {
    const int num_segments = num_segments_of(group.end_position - 1);
    auto& num_done = ws_.num_segments_done[static_cast<size_t>(unit)];
    if (num_done.fetch_add(1, std::memory_order_acq_rel) + 1 != (layer + 1) * num_segments) return;
    Partial* merged = partials_of(unit, 0);
    for (int i = 1; i < num_segments; ++i) merge_rows(group, i, merged, partials_of(unit, i));
    write_rows(group, head, merged);
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

  void add_to_residual(const Linear& linear, const Part& part, Activations& x) {
    multiply(linear, x, part.rows, columns(part, linear.n / kPair),
             [&](int row, int pair, auto& a, auto& b) {
               for (int r = 0; r < count_of(a); ++r) {
                 float* y = residual(row + r) + pair * kPair;
                 (F16::load(y) + a[r]).store(y);
                 (F16::load(y + 16) + b[r]).store(y + 16);
               }
             });
  }

  void gate(const Linear& linear, const Part& part, Activations& x) {
    multiply(linear, x, part.rows, columns(part, linear.n / kPair),
             [&](int row, int pair, auto& gates, auto& ups) {
               silu(gates);
               for (int r = 0; r < count_of(gates); ++r) {
                 (gates[r] * ups[r]).store(gated(row + r) + pair * 16);
               }
             });
  }

  void project_head(int thread) {
    if (s_.num_logit_rows == 0) return;
    const Part part{thread, {0, s_.num_logit_rows}, false};
    Activations& x = input_of(part, m_.head, [&](int i, float* y) {
      return rms_norm(residual(s_.logit_rows[i]), m_.final_norm, m_.hidden, m_.epsilon, y);
    });
    multiply(m_.head, x, part.rows, columns(part, m_.head.n / kPair),
             [&](int row, int pair, auto& a, auto& b) {
               for (int r = 0; r < count_of(a); ++r) {
                 float* y = s_.logits + static_cast<int64_t>(row + r) * m_.vocab + pair * kPair;
                 store_logits(y, m_.vocab - pair * kPair, a[r], b[r]);
               }
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
  const Plan& plan_;
  ThreadPool& pool_;
  int num_threads_;
  int heads_per_group_;
  int num_qkv_;
};

}  // namespace

void run_step(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
              const std::vector<int>* cores) {
  int num_threads = std::clamp(static_cast<int>(step.num_threads), 1, pool.num_threads());
  if (cores != nullptr) num_threads = std::min(num_threads, static_cast<int>(cores->size()));
  StepRun run(model, step, workspace, pool, num_threads);
  pool.run(num_threads, [&](int thread) { run.run(thread); }, cores);
}

}  // namespace slipstream
