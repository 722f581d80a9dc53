#include "unfused.h"

#include <algorithm>

#include "attention_run.h"
#include "integrity.h"
#include "operations.h"

namespace slipstream {

namespace {

using operations::Share;

class UnfusedRun {
 public:
  UnfusedRun(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
             PhaseClock& clock, int num_threads, const std::vector<int>* cores)
      : m_(model),
        s_(step),
        ws_(workspace),
        pool_(pool),
        clock_(clock),
        num_threads_(num_threads),
        cores_(cores) {
    check_integrity(model, step);
    num_heads_ = m_.num_heads + 2 * m_.num_kv_heads;
    const int widest = std::max({num_heads_ * m_.head_dim, m_.hidden, 2 * m_.intermediate});
    const auto rows = static_cast<size_t>(s_.num_rows);
    ws_.plan.make(model, step, num_threads);
    ws_.reserve(model, step.num_rows, 0, num_threads);
    ws_.reserve_attention(model, model.num_layers);
    ws_.normed.reserve(rows * static_cast<size_t>(m_.hidden));
    ws_.projected.reserve(rows * static_cast<size_t>(widest));
  }

  void run() {
    dispatch(s_.num_rows, [&](Share share) {
      operations::embed(share, m_, s_.token_ids, s_.num_rows, ws_.residual.data());
    });
    for (int layer = 0; layer < m_.num_layers; ++layer) {
      const Layer& l = m_.layers[layer];
      attend(l, layer);
      add_to_residual(l.output, ws_.attention.data());
      gate(l);
      add_to_residual(l.down, ws_.gated.data());
    }
    project_head();
  }

 private:
  // One operation. More threads than it has pieces would have nothing to do.
  template <typename Part>
  void dispatch(int num_pieces, const Part& part, Phase phase = kOtherPhase) {
    const int num_threads = std::clamp(num_pieces, 1, num_threads_);
    pool_.run(num_threads, [&](int thread) { part(Share{thread, num_threads}); }, cores_);
    clock_.lap(phase);
  }

  void attend(const Layer& l, int layer) {
    norm(ws_.residual.data(), l.attention_norm, s_.num_rows);
    project(l.qkv, ws_.normed.data(), s_.num_rows, l.qkv.n, ws_.qkv.data());
    const int stride = num_heads_ * m_.head_dim;
    const Queries queries{ws_.qkv.data(), stride, ws_.query_planes.data(), ws_.query_scales.data()};
    const auto finish = [&](Share share) {
      operations::finish_heads(share, m_, s_, ws_.plan, layer, ws_.qkv.data(), queries);
    };
    dispatch(s_.num_rows, finish, kKvPhase);
    const AttentionInput in{m_, s_, layer, queries.floats, stride, queries.planes, queries.scales};
    const auto attend_items = [&](Share) {
      AttentionRun(in, ws_, layer, ws_.attention.data()).run();
    };
    dispatch(static_cast<int>(ws_.plan.items.size()), attend_items, kKvPhase);
  }

  void gate(const Layer& l) {
    norm(ws_.residual.data(), l.mlp_norm, s_.num_rows);
    project(l.gate_up, ws_.normed.data(), s_.num_rows, l.gate_up.n, ws_.projected.data());
    dispatch(s_.num_rows, [&](Share share) {
      operations::silu_and_multiply(share, ws_.projected.data(), s_.num_rows, m_.intermediate,
                                    ws_.gated.data());
    });
  }

  void add_to_residual(const Linear& linear, const float* x) {
    project(linear, x, s_.num_rows, m_.hidden, ws_.projected.data());
    dispatch(s_.num_rows, [&](Share share) {
      operations::add(share, ws_.projected.data(), s_.num_rows, m_.hidden, ws_.residual.data());
    });
  }

  void project_head() {
    const int num_rows = s_.num_logit_rows;
    if (num_rows == 0) return;
    dispatch(num_rows, [&](Share share) {
      operations::select(share, ws_.residual.data(), s_.logit_rows, num_rows, m_.hidden,
                         ws_.projected.data());
    });
    norm(ws_.projected.data(), m_.final_norm, num_rows);
    project(m_.head, ws_.normed.data(), num_rows, m_.vocab, s_.logits);
  }

  void norm(const float* x, const float* weight, int num_rows) {
    dispatch(num_rows, [&](Share share) {
      operations::rms_norm(share, x, num_rows, weight, m_.hidden, m_.epsilon, ws_.normed.data());
    });
  }

  void project(const Linear& linear, const float* x, int num_rows, int num_columns, float* y) {
    const int num_pairs = linear.n / kPair;
    if (is_float(linear.format)) {
      const auto multiply =
          linear.format == kBf16 ? operations::linear_bf16 : operations::linear_float32;
      const auto of_floats = [&](Share share) {
        multiply(share, linear, x, num_rows, num_columns, y);
      };
      return dispatch(num_pairs, of_floats, kWeightsPhase);
    }
    const QuantizedRows quantized = ws_.shared.quantized();
    dispatch(num_rows, [&](Share share) {
      float* scratch = ws_.scratch[static_cast<size_t>(share.thread)].data();
      operations::quantize(share, linear, x, num_rows, scratch, quantized);
    });
    const auto of_integers = [&](Share share) {
      int8_t* scratch = ws_.linear_scratch[static_cast<size_t>(share.thread)].data();
      operations::linear_quantized(share, linear, quantized, num_rows, scratch, num_columns, y);
    };
    dispatch(num_pairs, of_integers, kWeightsPhase);
  }

  const Model& m_;
  const Step& s_;
  Workspace& ws_;
  ThreadPool& pool_;
  PhaseClock& clock_;
  const int num_threads_;
  const std::vector<int>* cores_;
  int num_heads_;
};

}  // namespace

void run_unfused_step(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
                      PhaseClock& clock, const std::vector<int>* cores) {
  int num_threads = std::clamp(static_cast<int>(step.num_threads), 1, pool.num_threads());
  if (cores != nullptr) num_threads = std::min(num_threads, static_cast<int>(cores->size()));
  UnfusedRun(model, step, workspace, pool, clock, num_threads, cores).run();
}

}  // namespace slipstream
