// The phases of a step, in the order in which they run: they are read from top to bottom.
#include "step.h"

#include <algorithm>
#include <cassert>

#include "attention_run.h"
#include "heads.h"
#include "integrity.h"
#include "linear_quantized.h"
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

// What a thread computes of a phase: its own rows, or its share of the columns of all rows.
struct Part {
  int thread;
  Range rows;
  bool has_own_rows;
};

class StepRun {
 public:
  StepRun(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
          PhaseClock& clock, int num_threads)
      : m_(model),
        s_(step),
        ws_(workspace),
        plan_(workspace.plan),
        pool_(pool),
        clock_(clock),
        num_threads_(num_threads) {
    check_integrity(model, step);
    num_qkv_ = (m_.num_heads + 2 * m_.num_kv_heads) * m_.head_dim;
    ws_.plan.make(model, step, num_threads);
    ws_.reserve(model, step.num_rows, own_rows() ? kPanelRows : kRowsForEach, num_threads);
    ws_.reserve_attention(model, model.num_layers);
  }

  void run(int thread) {
    const Part all = part_of(thread);
    embed_rows(all);
    if (!all.has_own_rows) wait();
    lap(thread, kOtherPhase);
    for (int layer = 0; layer < m_.num_layers; ++layer) {
      const Layer& l = m_.layers[layer];
      each_panel(all, [&](const Part& part) { project_qkv(l, layer, part); });
      wait();
      attend(layer);
      wait();
      lap(thread, kKvPhase);
      each_panel(all, [&](const Part& part) { finish_layer(l, part); });
    }
    if (all.has_own_rows) wait();
    lap(thread, kWeightsPhase);
    project_head(thread);
  }

 private:
  void wait() { pool_.barrier().wait(); }
  void lap(int thread, Phase phase) {
    if (thread == 0) clock_.lap(phase);
  }
  float* residual(int row) { return ws_.residual.data() + static_cast<int64_t>(row) * m_.hidden; }
  float* attention(int row) {
    return ws_.attention.data() + static_cast<int64_t>(row) * m_.num_heads * m_.head_dim;
  }
  float* gated(int row) { return ws_.gated.data() + static_cast<int64_t>(row) * m_.intermediate; }
  float* qkv(int row) { return ws_.qkv.data() + static_cast<int64_t>(row) * num_qkv_; }

  bool own_rows() const { return s_.num_rows >= kOwnRows * num_threads_; }
  Part part_of(int thread) const {
    if (!own_rows()) return {thread, {0, s_.num_rows}, false};
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
  void end_matrix(const Part& part) {
    meet(part);
    lap(part.thread, kWeightsPhase);
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
    end_matrix(part);
    gate(l.gate_up, part, input_of(part, l.gate_up, [&](int row, float* y) {
           return rms_norm(residual(row), l.mlp_norm, m_.hidden, m_.epsilon, y);
         }));
    end_matrix(part);
    add_to_residual(l.down, part,
                    input_of(part, l.down, [&](int row, float*) { return gated(row); }));
    end_matrix(part);
  }

  void embed_rows(const Part& part) {
    const Range rows = rows_to_prepare(part);
    for (int row = rows.first; row < rows.end; ++row) {
      embed(m_, s_.token_ids[row], residual(row));
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
      if (is_float(linear.format)) {
        std::memcpy(to.floats.data() + static_cast<int64_t>(at) * linear.k, x,
                    sizeof(float) * static_cast<size_t>(linear.k));
      } else {
        quantize_input(linear, x, scratch + linear.k, to.low.data() + static_cast<int64_t>(at) * linear.k,
                       to.high.data() + static_cast<int64_t>(at) * linear.num_outliers,
                       to.scales.data() + at);
      }
    }
    if (!is_for_each) wait();
    lap(part.thread, kOtherPhase);
    return to;
  }

  template <typename Epilogue>
  void multiply(const Linear& linear, Activations& x, const Part& part, Range pairs, const Epilogue& epilogue) {
    const auto at_row = [&](int row, int pair, auto& a, auto& b) {
      epilogue(part.rows.first + row, pair, a, b);
    };
    const int num_rows = part.rows.count();
    if (linear.format == kFloat32) {
      linear_float<float>(linear, x.floats.data(), num_rows, pairs.first, pairs.end, at_row);
    } else if (linear.format == kBf16) {
      linear_float<Bf16>(linear, x.floats.data(), num_rows, pairs.first, pairs.end, at_row);
    } else {
      int8_t* scratch = ws_.linear_scratch[static_cast<size_t>(part.thread)].data();
      linear_quantized(linear, x.quantized(), num_rows, pairs.first, pairs.end, scratch, at_row);
    }
  }

  // Whole heads a thread, so that what follows a projection stays with who made it.
  void project_qkv(const Layer& l, int layer, const Part& part) {
    Activations& x = input_of(part, l.qkv, [&](int row, float* y) {
      return rms_norm(residual(row), l.attention_norm, m_.hidden, m_.epsilon, y);
    });
    const int pairs = m_.head_dim / kPair;
    const Range heads = columns(part, m_.num_heads + 2 * m_.num_kv_heads);
    multiply(l.qkv, x, part, {heads.first * pairs, heads.end * pairs},
             [&](int row, int pair, auto& a, auto& b) {
               for (int r = 0; r < count_of(a); ++r) {
                 float* y = qkv(row + r) + pair * kPair;
                 a[r].store(y);
                 b[r].store(y + 16);
               }
             });
    lap(part.thread, kWeightsPhase);
    const Queries to{ws_.qkv.data(), num_qkv_, ws_.query_planes.data(), ws_.query_scales.data()};
    finish_heads(m_, s_, plan_, l, layer, ws_.qkv.data(), to, part.rows, heads);
    lap(part.thread, kKvPhase);
  }

  void attend(int layer) {
    const AttentionInput in{m_, s_, layer, ws_.qkv.data(), num_qkv_, ws_.query_planes.data(),
                            ws_.query_scales.data()};
    AttentionRun(in, ws_, layer, ws_.attention.data()).run();
  }

  void add_to_residual(const Linear& linear, const Part& part, Activations& x) {
    multiply(linear, x, part, columns(part, linear.n / kPair),
             [&](int row, int pair, auto& a, auto& b) {
               for (int r = 0; r < count_of(a); ++r) {
                 float* y = residual(row + r) + pair * kPair;
                 (F16::load(y) + a[r]).store(y);
                 (F16::load(y + 16) + b[r]).store(y + 16);
               }
             });
  }

  void gate(const Linear& linear, const Part& part, Activations& x) {
    multiply(linear, x, part, columns(part, linear.n / kPair),
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
    multiply(m_.head, x, part, columns(part, m_.head.n / kPair),
             [&](int row, int pair, auto& a, auto& b) {
               for (int r = 0; r < count_of(a); ++r) {
                 float* y = s_.logits + static_cast<int64_t>(row + r) * m_.vocab + pair * kPair;
                 store_pair(y, m_.vocab - pair * kPair, a[r], b[r]);
               }
             });
  }

  const Model& m_;
  const Step& s_;
  Workspace& ws_;
  const Plan& plan_;
  ThreadPool& pool_;
  PhaseClock& clock_;  // the first thread's alone
  int num_threads_;
  int num_qkv_;
};

}  // namespace

void run_step(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
              PhaseClock& clock, const std::vector<int>* cores) {
  int num_threads = std::clamp(static_cast<int>(step.num_threads), 1, pool.num_threads());
  if (cores != nullptr) num_threads = std::min(num_threads, static_cast<int>(cores->size()));
  StepRun run(model, step, workspace, pool, clock, num_threads);
  pool.run(num_threads, [&](int thread) { run.run(thread); }, cores);
}

}  // namespace slipstream
