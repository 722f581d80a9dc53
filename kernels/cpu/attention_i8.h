// Attention over one segment of int8 KV: exact integer dot products, softmax in float32.
//
// The softmax weights of a segment, times their values' scales, become 16 bits under one scale a row:
// so the values of a whole segment are summed in int32 and scaled once.
#pragma once

#include <cassert>

#include "attention_dots.h"
#include "attention_types.h"
#include "rows.h"

namespace slipstream {

class Int8Segment {
 public:
  Int8Segment(const AttentionInput& in, const Piece& piece)
      : m_(in.model), group_(*piece.group), first_(piece.segment * kSegment) {
    heads_ = m_.num_heads / m_.num_kv_heads;
    dim_ = m_.head_dim;
    end_ = group_.end_position < first_ + kSegment ? group_.end_position : first_ + kSegment;
    num_blocks_ = (end_ - first_ + kBlockSize - 1) / kBlockSize;
    num_queries_ = group_.num_rows * heads_;
    const int64_t query = (static_cast<int64_t>(group_.first_row) * m_.num_kv_heads +
                           static_cast<int64_t>(piece.kv_head) * group_.num_rows) * heads_;
    planes_ = in.planes + 2 * query * dim_;
    assert(num_blocks_ > 0 && num_blocks_ <= kBlocksPerSegment && "a segment has positions");
    assert(num_queries_ > 0 && num_queries_ <= kTileRows && "queries fit one tile");
    assert(reinterpret_cast<uintptr_t>(planes_) % 64 == 0 && "queries begin on cache lines");
    query_scales_ = in.scales + query;
    find_starts(planes_, 2 * num_queries_, dim_, starts_);
    for (int b = 0; b < num_blocks_; ++b) {
      const auto* block = reinterpret_cast<const int8_t*>(block_of(in, piece, b));
      keys_[b] = block;
      values_[b] = block + kBlockSize * dim_;
      key_scales_[b] = reinterpret_cast<const float*>(block + 2 * kBlockSize * dim_);
    }
  }

  void attend(Upcoming& upcoming, Partial* partials) {
    // Many queries share what the first of them read: only few are bound by memory.
    const bool is_streaming = is_joint(num_queries_);
    // One block ahead of the conversion, which hides the latency of the products.
    score_block(planes_, num_queries_, dim_, keys_[0], starts_, sums_);
    for (int b = 0; b < num_blocks_; ++b) {
      int32_t* other = sums_ + (b + 1) % 2 * 2 * kTileRows * kBlockSize;
      if (b + 1 < num_blocks_) score_block(planes_, num_queries_, dim_, keys_[b + 1], starts_, other);
      if (is_streaming) upcoming.pull();
      convert_scores(b, sums_ + b % 2 * 2 * kTileRows * kBlockSize);
    }
    weigh(partials);
    value_segment(weights_, num_queries_, dim_, values_, num_blocks_, sums_);
    for (int i = 0; i < num_queries_; ++i) {
      if (num_visible(i) > 0) finish(i, partials[i]);
    }
  }

 private:
  // Positions of this segment that a query sees.
  int num_visible(int i) const {
    const int visible = group_.first_position + i / heads_ + 1 - first_;
    return visible < end_ - first_ ? visible : end_ - first_;
  }
  void convert_scores(int b, const int32_t* sums) {
    const int num_queries = num_queries_;
    for (int half = 0; half < 2; ++half) {
      const F16 slot_scales = F16::load(key_scales_[b] + half * 16);
      const int32_t* low = sums + half * 2 * num_queries * 16;
      const int32_t* high = low + num_queries * 16;
      float* to = scores_[0] + b * kBlockSize + half * 16;
      const float* query_scales = query_scales_;
      for (int i = 0; i < num_queries; ++i) {
        const I16 sum = I16::load(low + i * 16) + shift_left<8>(I16::load(high + i * 16));
        (to_float(sum) * (slot_scales * F16::set(query_scales[i]))).store(to + i * kSegment);
      }
    }
  }

  // Three passes over all queries instead of one: so the latency of a reduction hides behind the
  // next query.
  void weigh(Partial* partials) {
    for (int i = 0; i < num_queries_; ++i) {
      if (num_visible(i) > 0) partials[i].maximum = mask_and_find_maximum(scores_[i], num_visible(i));
    }
    for (int i = 0; i < num_queries_; ++i) soften(i, partials[i]);
    for (int i = 0; i < num_queries_; ++i) quantize_weights(i);
  }

  // 2^(score - max), times the values' scales.
  void soften(int i, Partial& partial) {
    const int count = num_visible(i);
    float* scores = scores_[i];
    const F16 maximum = F16::set(partial.maximum);
    F16 sum = F16::zero(), strongest = F16::zero();
    int slot = 0;
    for (; slot + kTogether * kLanes <= count; slot += kTogether * kLanes) {
      F16 p[kTogether];
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) p[j] = F16::load(scores + slot + j * kLanes) - maximum;
      exp2(p);
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) {
        const F16 weight = p[j] * value_scales(slot + j * kLanes);
        sum = sum + p[j];
        strongest = max_magnitude(strongest, weight);
        weight.store(scores + slot + j * kLanes);
      }
    }
    for (; slot < count; slot += kLanes) {
      const F16 p = select_first(count - slot, exp2(F16::load(scores + slot) - maximum), F16::zero());
      const F16 weight = select_first(count - slot, p * value_scales(slot), F16::zero());
      sum = sum + p;
      strongest = max_magnitude(strongest, weight);
      weight.store(scores + slot);
    }
    partial.sum = reduce_add(sum);
    largest_weights_[i] = reduce_magnitude(strongest);
  }

  // Two planes of 8 bits under one scale.
  void quantize_weights(int i) {
    const int count = num_visible(i);
    const float largest = count > 0 ? largest_weights_[i] : 0.0f;
    largest_weights_[i] = largest;
    const F16 inverse = F16::set(largest > 0.0f ? kLargestWeight / largest : 0.0f);
    auto* low = reinterpret_cast<int8_t*>(weights_) + i * kBlockSize;
    const int plane = num_queries_ * kBlockSize, num_slots = num_blocks_ * kBlockSize;
    const float* scores = scores_[i];
    for (int slot = 0; slot < num_slots; slot += kBlockSize, low += 2 * plane) {
      for (int half = 0; half < kBlockSize; half += kLanes) {
        const I16 codes = slot + half < count ? round_to_int(F16::load(scores + slot + half) * inverse)
                                              : I16::zero();
        store_bytes(codes, low + half);
        store_bytes(shift_right<8>(codes), low + plane + half);
      }
    }
  }

  F16 value_scales(int slot) const {
    return F16::load(key_scales_[slot / kBlockSize] + kBlockSize + slot % kBlockSize);
  }

  void finish(int i, Partial& partial) const {
    const F16 scale = F16::set(largest_weights_[i] / kLargestWeight);
    const int32_t* low = sums_ + i * dim_;
    const int32_t* high = low + num_queries_ * dim_;
    for (int d = 0; d < dim_; d += kLanes) {
      const I16 sum = I16::load(low + d) + shift_left<8>(I16::load(high + d));
      (to_float(sum) * scale).store(partial.values + d);
    }
  }

  static constexpr int kTogether = 4;  // vectors of scores: see exp2
  static constexpr float kLargestWeight = 65535.0f;

  const Model& m_;
  const QueryGroup& group_;
  int heads_, dim_, first_, end_, num_blocks_, num_queries_;
  const int8_t* planes_;        // [2][queries][dim]
  const float* query_scales_;   // [queries]
  const int8_t* keys_[kBlocksPerSegment];
  const int8_t* values_[kBlocksPerSegment];
  const float* key_scales_[kBlocksPerSegment];  // of 32 keys, then of 32 values
  int32_t starts_[2 * kTileRows];  // of the planes' rows
  float largest_weights_[kTileRows];
  alignas(64) float scores_[kTileRows][kSegment];
  alignas(64) uint8_t weights_[kBlocksPerSegment * 2 * kTileRows * kBlockSize];
  alignas(64) int32_t sums_[2 * kTileRows * kMaxDim];
};

}  // namespace slipstream
