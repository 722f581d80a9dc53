// Causal attention over paged KV, in segments of 256 positions from 0, merged in ascending order.
//
//   score = q . k / sqrt(dim) / log 2;  p = 2^(score - max);  out = sum p v / sum p      (each query head)
//
// A row's partial result over a segment depends on the row and the segment alone, and partial results
// are merged in one order (online softmax, as in FlashAttention), whoever computed them: so neither
// the batch nor the chunking nor the threads can change a bit. All query rows of a sequence that fit
// a tile, and all query heads of a KV head, go together against a block: it is read once for them.
#pragma once

#include <cassert>

#include "attention_i8.h"
#include "attention_types.h"

namespace slipstream {

// 2^(score - max) of `count` scores in place.
inline void soften(float* scores, int count, Partial* partial) {
  partial->maximum = mask_and_find_maximum(scores, count);
  F16 sum = F16::zero();
  for (int i = 0; i < count; i += kLanes) {
    F16 p = exp2(F16::load(scores + i) - F16::set(partial->maximum));
    if (i + kLanes > count) p = select_first(count - i, p, F16::zero());
    p.store(scores + i);
    sum = sum + p;
  }
  partial->sum = reduce_add(sum);
}

// One segment in float32: keys and values, in float32 or bf16, are rows of [slot][dim], dim = 16 *
// kVectors.
template <typename Element, int kVectors>
struct FloatSegment {
  const AttentionInput& in;
  const QueryGroup& group;
  int kv_head, first, end, heads;
  const Element* blocks[kBlocksPerSegment];  // keys of each block; values lie a plane behind

  FloatSegment(const AttentionInput& input, const Piece& piece)
      : in(input), group(*piece.group), kv_head(piece.kv_head), first(piece.segment * kSegment) {
    const Model& m = in.model;
    heads = m.num_heads / m.num_kv_heads;
    end = group.end_position < first + kSegment ? group.end_position : first + kSegment;
    assert(end > first && "a segment has positions");
    const Sequence& sequence = in.step.sequences[group.sequence];
    for (int b = 0; b * kBlockSize < end - first; ++b) {
      const int32_t id = in.step.block_tables[sequence.first_block + first / kBlockSize + b];
      blocks[b] = reinterpret_cast<const Element*>(in.step.kv + id * in.step.block_bytes) +
                  2LL * in.layer * plane() + static_cast<int64_t>(kv_head) * kBlockSize * dim();
    }
  }
  static constexpr int dim() { return kVectors * kLanes; }
  int64_t plane() const {
    return static_cast<int64_t>(in.model.num_kv_heads) * kBlockSize * dim();
  }
  const Element* key(int i) const { return blocks[i / kBlockSize] + i % kBlockSize * dim(); }
  const Element* value(int i) const { return key(i) + plane(); }
  const float* query(int i) const {
    const int64_t row = group.first_row + i / heads;
    return in.queries + row * in.query_stride +
           static_cast<int64_t>(kv_head * heads + i % heads) * dim();
  }
  int num_visible(int i) const {
    const int visible = group.first_position + i / heads + 1 - first;
    return visible < end - first ? visible : end - first;
  }

  // The first `count` scores of a query, which stays in registers.
  void score(int i, int count, float* scores) const {
    F16 q[kVectors];
    for (int d = 0; d < kVectors; ++d) q[d] = F16::load(query(i) + d * kLanes);
    for (int p = 0; p < count; ++p) {
      F16 sum = F16::zero();
      for (int d = 0; d < kVectors; ++d) sum = fma(q[d], F16::load(key(p) + d * kLanes), sum);
      scores[p] = reduce_add(sum);
    }
  }
  // Weighted values, ascending; the sums stay in registers.
  void gather(int count, const float* weights, float* out) const {
    for (int d = 0; d < kVectors; d += 4) {
      F16 a = F16::zero(), b = F16::zero(), c = F16::zero(), e = F16::zero();
      for (int p = 0; p < count; ++p) {
        const F16 weight = F16::set(weights[p]);
        const Element* v = value(p) + d * kLanes;
        a = fma(weight, F16::load(v), a);
        b = fma(weight, F16::load(v + kLanes), b);
        c = fma(weight, F16::load(v + 2 * kLanes), c);
        e = fma(weight, F16::load(v + 3 * kLanes), e);
      }
      a.store(out + d * kLanes);
      b.store(out + (d + 1) * kLanes);
      c.store(out + (d + 2) * kLanes);
      e.store(out + (d + 3) * kLanes);
    }
  }
  void attend(Partial* partials) const {
    alignas(64) float scores[kSegment];
    for (int i = 0; i < group.num_rows * heads; ++i) {
      const int count = num_visible(i);
      if (count <= 0) continue;
      score(i, count, scores);
      soften(scores, count, &partials[i]);
      gather(count, scores, partials[i].values);
    }
  }
};

template <typename Element>
inline void float_segment(const AttentionInput& in, const Piece& piece, Partial* partials) {
  switch (in.model.head_dim) {
    case 64:
      return FloatSegment<Element, 4>(in, piece).attend(partials);
    case 128:
      return FloatSegment<Element, 8>(in, piece).attend(partials);
    default:
      return FloatSegment<Element, 16>(in, piece).attend(partials);
  }
}

// The partial results of a piece.
inline void attend_segment(const AttentionInput& in, const Piece& piece, Upcoming& upcoming,
                           Partial* partials) {
  if (in.model.kv_format == kInt8) {
    Int8Segment(in, piece).attend(upcoming, partials);
  } else if (in.model.kv_format == kBf16) {
    float_segment<Bf16>(in, piece, partials);
  } else {
    float_segment<float>(in, piece, partials);
  }
}

}  // namespace slipstream
