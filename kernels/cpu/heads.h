// What follows the projection of a head: rotation, and into the query planes or the KV cache.
#pragma once

#include <cassert>

#include "attention_types.h"
#include "rows.h"
#include "workspace.h"

namespace slipstream {

// Heads of kVectors * 16 dimensions, which stay in registers.
template <int kVectors>
class HeadRows {
 public:
  HeadRows(const Model& model, const Step& step, Workspace& workspace, const Layer& layer, int layer_idx)
      : m_(model),
        s_(step),
        ws_(workspace),
        layer_(layer),
        layer_idx_(layer_idx),
        heads_per_group_(model.num_heads / model.num_kv_heads) {
    assert(model.head_dim == kDim && "heads are as long as their registers");
  }

  // The row that `finish` is about.
  void set_row(int row) {
    row_ = row;
    const int position = ws_.plan.positions[static_cast<size_t>(row)];
    const Sequence& sequence = s_.sequences[ws_.plan.row_sequence[static_cast<size_t>(row)]];
    const int32_t block_id = s_.block_tables[sequence.first_block + position / kBlockSize];
    block_ = s_.kv + block_id * s_.block_bytes;
    slot_ = position % kBlockSize;
    cosines_ = m_.cosines + static_cast<int64_t>(position) * (kDim / 2);
    sines_ = m_.sines + static_cast<int64_t>(position) * (kDim / 2);
  }

  // x [dim] is head `head` of the projection: queries, then keys, then values.
  void finish(int head, float* x) {
    assert(head >= 0 && head < m_.num_heads + 2 * m_.num_kv_heads && "a head of the projection");
    F16 v[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) v[i] = F16::load(x + i * kLanes);
    if (head < m_.num_heads) {
      finish_query(head, v, x);
    } else if (head < m_.num_heads + m_.num_kv_heads) {
      finish_key(head - m_.num_heads, v);
    } else {
      finish_value(head - m_.num_heads - m_.num_kv_heads, v);
    }
  }

 private:
  static constexpr int kDim = kVectors * kLanes;
  using Vectors = F16 (&)[kVectors];

  // Rotary embedding, halves paired as in the Llama family: (x1, x2) at (i, i + dim / 2).
  void rotate(Vectors v) const {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors / 2; ++i) {
      const F16 c = F16::load(cosines_ + i * kLanes), s = F16::load(sines_ + i * kLanes);
      const F16 a = v[i], b = v[i + kVectors / 2];
      v[i] = a * c - b * s;
      v[i + kVectors / 2] = b * c + a * s;
    }
  }

  static float max_abs_of(Vectors v) {
    F16 found = F16::zero();
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) found = max(found, abs(v[i]));
    return reduce_max(found);
  }

  void finish_query(int head, Vectors v, float* x) {
    rotate(v);
    // Divided by log 2, for a softmax by powers of two.
    const F16 scale = F16::set(kLog2E / std::sqrt(static_cast<float>(kDim)));
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) v[i] = v[i] * scale;
    if (m_.kv_format == kFloat32) {
      for (int i = 0; i < kVectors; ++i) v[i].store(x + i * kLanes);
      return;
    }
    hadamard(v);
    const QueryGroup& group = ws_.plan.groups[static_cast<size_t>(ws_.plan.row_group[static_cast<size_t>(row_)])];
    const int num_queries = group.num_rows * heads_per_group_;
    const int kv_head = head / heads_per_group_;
    const int64_t first = (static_cast<int64_t>(group.first_row) * m_.num_kv_heads +
                           static_cast<int64_t>(kv_head) * group.num_rows) * heads_per_group_;
    const int idx = (row_ - group.first_row) * heads_per_group_ + head % heads_per_group_;
    // 16 bits: queries are never stored, so their precision is free.
    const float largest = max_abs_of(v) / 32512.0f;
    const F16 inverse = inverse_of(largest);
    int8_t* low = ws_.query_planes.data() + (2 * first + idx) * kDim;
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      split_planes(quantized(v[i], inverse), low + i * kLanes,
                   low + num_queries * kDim + i * kLanes);
    }
    ws_.query_scales.data()[first + idx] = largest;
  }

  void finish_key(int kv_head, Vectors v) {
    rotate(v);
    if (m_.kv_format == kFloat32) return store_float(kv_head, 0, v);
    // Rotated, then without its mean: both leave the softmax as it is and take the outliers away.
    hadamard(v);
    if (layer_.key_mean != nullptr) {
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) {
        v[i] = v[i] - F16::load(layer_.key_mean + kv_head * kDim + i * kLanes);
      }
    }
    int8_t codes[kDim];
    int8_t* part = int8_part(kv_head);
    scales_of(part)[slot_] = quantize(v, codes);
    int8_t* keys = part + slot_ / 16 * 16 * kDim + slot_ % 16 * 4;
#pragma GCC unroll 64
    for (int d = 0; d < kDim; d += 4) std::memcpy(keys + d * 16, codes + d, 4);
  }

  void finish_value(int kv_head, Vectors v) {
    if (m_.kv_format == kFloat32) return store_float(kv_head, 1, v);
    int8_t* part = int8_part(kv_head);
    int8_t* values = part + kBlockSize * kDim + slot_ / 4 * kDim * 4;
    const float scale = max_abs_of(v) / 127.0f;
    scales_of(part)[kBlockSize + slot_] = scale;
    const F16 inverse = inverse_of(scale);
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      store_interleaved(quantized(v[i], inverse), slot_ % 4, values + i * kLanes * 4);
    }
  }

  // 8 bits; returns their scale.
  static float quantize(Vectors v, int8_t* codes) {
    const float scale = max_abs_of(v) / 127.0f;
    const F16 inverse = inverse_of(scale);
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) store_bytes(quantized(v[i], inverse), codes + i * kLanes);
    return scale;
  }

  int8_t* int8_part(int kv_head) const {
    return reinterpret_cast<int8_t*>(block_ + KvPlace().offset_of(m_, layer_idx_, kv_head));
  }
  static float* scales_of(int8_t* part) {
    return reinterpret_cast<float*>(part + 2 * kBlockSize * kDim);
  }

  void store_float(int kv_head, int which, Vectors v) const {
    const int64_t plane = static_cast<int64_t>(m_.num_kv_heads) * kBlockSize * kDim;
    float* to = reinterpret_cast<float*>(block_) + (2LL * layer_idx_ + which) * plane +
                (static_cast<int64_t>(kv_head) * kBlockSize + slot_) * kDim;
    for (int i = 0; i < kVectors; ++i) v[i].store(to + i * kLanes);
  }

  const Model& m_;
  const Step& s_;
  Workspace& ws_;
  const Layer& layer_;
  const int layer_idx_;
  const int heads_per_group_;
  int row_ = 0;
  int slot_ = 0;
  uint8_t* block_ = nullptr;
  const float* cosines_ = nullptr;
  const float* sines_ = nullptr;
};

}  // namespace slipstream
