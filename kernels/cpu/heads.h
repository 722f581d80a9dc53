// What follows the projection of a head: rotation, and into the query planes or the KV cache.
#pragma once

#include <cassert>

#include "attention_types.h"
#include "plan.h"
#include "rows.h"

namespace slipstream {

// Where finished queries go: floats by row (in float32 and bf16), or planes and scales by group (in
// int8), as `AttentionInput` has them.
struct Queries {
  float* floats;  // [rows][stride]
  int stride;
  int8_t* planes;
  float* scales;
};

// Heads of kVectors * 16 dimensions, which stay in registers.
template <int kVectors>
class HeadRows {
 public:
  HeadRows(const Model& model, const Step& step, const Plan& plan, const Layer& layer, int layer_idx,
           const Queries& queries)
      : m_(model),
        s_(step),
        plan_(plan),
        queries_(queries),
        layer_(layer),
        layer_idx_(layer_idx),
        heads_per_group_(model.num_heads / model.num_kv_heads) {
    assert(model.head_dim == kDim && "heads are as long as their registers");
  }

  // The row that `finish` is about.
  void set_row(int row) {
    row_ = row;
    const int position = plan_.positions[static_cast<size_t>(row)];
    const Sequence& sequence = s_.sequences[plan_.row_sequence[static_cast<size_t>(row)]];
    const int32_t block_id = s_.block_tables[sequence.first_block + position / kBlockSize];
    block_ = s_.kv + block_id * s_.block_bytes;
    slot_ = position % kBlockSize;
    cosines_ = m_.cosines + static_cast<int64_t>(position) * (kDim / 2);
    sines_ = m_.sines + static_cast<int64_t>(position) * (kDim / 2);
  }

  // x [dim] is head `head` of the projection: queries, then keys, then values.
  void finish(int head, const float* x) {
    assert(head >= 0 && head < m_.num_heads + 2 * m_.num_kv_heads && "a head of the projection");
    F16 v[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) v[i] = F16::load(x + i * kLanes);
    if (head < m_.num_heads) {
      finish_query(head, v);
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
    for (int i = 0; i < kVectors; ++i) found = max_magnitude(found, v[i]);
    return reduce_magnitude(found);
  }

  void finish_query(int head, Vectors v) {
    rotate(v);
    // Divided by log 2, for a softmax by powers of two.
    const F16 scale = F16::set(kLog2E / std::sqrt(static_cast<float>(kDim)));
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) v[i] = v[i] * scale;
    if (is_float(m_.kv_format)) {
      float* to = queries_.floats + static_cast<int64_t>(row_) * queries_.stride + head * kDim;
      for (int i = 0; i < kVectors; ++i) v[i].store(to + i * kLanes);
      return;
    }
    hadamard(v);
    const auto group_idx = static_cast<size_t>(plan_.row_group[static_cast<size_t>(row_)]);
    const QueryGroup& group = plan_.groups[group_idx];
    const int num_queries = group.num_rows * heads_per_group_;
    const int kv_head = head / heads_per_group_;
    const int64_t first = (static_cast<int64_t>(group.first_row) * m_.num_kv_heads +
                           static_cast<int64_t>(kv_head) * group.num_rows) * heads_per_group_;
    const int idx = (row_ - group.first_row) * heads_per_group_ + head % heads_per_group_;
    // 16 bits: queries are never stored, so their precision is free.
    const float largest = max_abs_of(v) / 32512.0f;
    const F16 inverse = inverse_of(largest);
    int8_t* low = queries_.planes + (2 * first + idx) * kDim;
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      split_planes(quantized(v[i], inverse), low + i * kLanes,
                   low + num_queries * kDim + i * kLanes);
    }
    queries_.scales[first + idx] = largest;
  }

  void finish_key(int kv_head, Vectors v) {
    rotate(v);
    if (is_float(m_.kv_format)) return store_float(kv_head, 0, v);
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
    if (is_float(m_.kv_format)) return store_float(kv_head, 1, v);
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
    if (m_.kv_format == kBf16) return store_as<Bf16>(kv_head, which, v);
    store_as<float>(kv_head, which, v);
  }
  template <typename Element>
  void store_as(int kv_head, int which, Vectors v) const {
    const int64_t plane = static_cast<int64_t>(m_.num_kv_heads) * kBlockSize * kDim;
    Element* to = reinterpret_cast<Element*>(block_) + (2LL * layer_idx_ + which) * plane +
                  (static_cast<int64_t>(kv_head) * kBlockSize + slot_) * kDim;
    for (int i = 0; i < kVectors; ++i) v[i].store(to + i * kLanes);
  }

  const Model& m_;
  const Step& s_;
  const Plan& plan_;
  const Queries queries_;
  const Layer& layer_;
  const int layer_idx_;
  const int heads_per_group_;
  int row_ = 0;
  int slot_ = 0;
  uint8_t* block_ = nullptr;
  const float* cosines_ = nullptr;
  const float* sines_ = nullptr;
};

namespace detail {

template <int kVectors>
inline void finish_heads(HeadRows<kVectors> finisher, const float* qkv, int num_heads, Range rows,
                         Range heads) {
  for (int row = rows.first; row < rows.end; ++row) {
    finisher.set_row(row);
    for (int head = heads.first; head < heads.end; ++head) {
      finisher.finish(head, qkv + (static_cast<int64_t>(row) * num_heads + head) * kVectors * kLanes);
    }
  }
}

}  // namespace detail

// Some heads of some rows of a projection, qkv [rows][heads of q, k, v][dim].
inline void finish_heads(const Model& m, const Step& step, const Plan& plan, const Layer& layer,
                         int layer_idx, const float* qkv, const Queries& to, Range rows, Range heads) {
  const int num_heads = m.num_heads + 2 * m.num_kv_heads;
  switch (m.head_dim) {
    case 64:
      return detail::finish_heads<4>({m, step, plan, layer, layer_idx, to}, qkv, num_heads, rows, heads);
    case 128:
      return detail::finish_heads<8>({m, step, plan, layer, layer_idx, to}, qkv, num_heads, rows, heads);
    default:
      return detail::finish_heads<16>({m, step, plan, layer, layer_idx, to}, qkv, num_heads, rows, heads);
  }
}

}  // namespace slipstream
