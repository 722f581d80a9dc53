// What attention works on: query groups, pieces of work, partial results and their merging.
#pragma once

#include <limits>

#include "model.h"
#include "vector.h"
#include "vector_math.h"

namespace slipstream {

constexpr int kMaxDim = 256;
constexpr int kBlocksPerSegment = kSegment / kBlockSize;

// Up to 16 query rows: (row of the batch, query head) with one KV head.
struct QueryGroup {
  int sequence;
  int first_row;  // of the batch
  int num_rows;
  int first_position;
  int end_position;  // positions that the last row sees
};

// Partial result of one query row over one segment. Scores are in units of log 2, so that weights are
// powers of two.
struct Partial {
  float maximum;
  float sum;
  float values[kMaxDim];
};

inline float exp2_scalar(float x) {
  float lanes[kLanes];
  exp2(F16::set(x)).store(lanes);
  return lanes[0];
}

inline void merge(Partial& into, const Partial& next, int dim) {
  const float maximum = into.maximum > next.maximum ? into.maximum : next.maximum;
  const float a = exp2_scalar(into.maximum - maximum), b = exp2_scalar(next.maximum - maximum);
  for (int d = 0; d < dim; d += kLanes) {
    const F16 scaled = F16::load(into.values + d) * F16::set(a);
    fma(F16::load(next.values + d), F16::set(b), scaled).store(into.values + d);
  }
  into.sum = into.sum * a + next.sum * b;
  into.maximum = maximum;
}

struct AttentionInput {
  const Model& model;
  const Step& step;
  int layer;
  const float* queries;    // [rows][qkv stride], rotated and scaled (float32, bf16)
  int query_stride;
  const int8_t* planes;    // the same of each group and KV head: [2 planes][queries][dim] (int8)
  const float* scales;     // [queries]
};

// One piece of work: the query rows of a group with one KV head over one segment.
struct Piece {
  const QueryGroup* group;
  int kv_head;
  int segment;

  int num_blocks() const {
    const int left = group->end_position - segment * kSegment;
    return ((left < kSegment ? left : kSegment) + kBlockSize - 1) / kBlockSize;
  }
};

// Block `b` of a piece's segment: the part of its layer and KV head.
inline const uint8_t* block_of(const AttentionInput& in, const Piece& piece, int b) {
  const Sequence& sequence = in.step.sequences[piece.group->sequence];
  const int block_idx = sequence.first_block + piece.segment * kBlocksPerSegment + b;
  return in.step.kv + in.step.block_tables[block_idx] * in.step.block_bytes +
         KvPlace().offset_of(in.model, in.layer, piece.kv_head);
}

// What a thread takes at once: some KV heads and segments of a group.
struct AttentionItem {
  int group;
  int first_head, end_head;
  int first_segment, end_segment;
};

// The KV of a thread's next item comes into the cache while it computes the present one: a block at a
// time with its heads together, as they lie in memory, which likes to be read in order.
class Upcoming {
 public:
  Upcoming() = default;
  Upcoming(const AttentionInput& in, const QueryGroup& group, const AttentionItem& item)
      : in_(&in),
        piece_{&group, item.first_head, item.first_segment},
        first_head_(item.first_head),
        end_head_(item.end_head),
        end_segment_(item.end_segment) {}

  // One head of one block.
  void pull() {
    if (in_ == nullptr || piece_.segment == end_segment_) return;
    const uint8_t* part = block_of(*in_, piece_, block_);
    const int64_t bytes = KvPlace::int8_bytes(in_->model.head_dim);
    for (int64_t i = 0; i < bytes; i += 64) prefetch_far(part + i);
    if (++piece_.kv_head < end_head_) return;
    piece_.kv_head = first_head_;
    if (++block_ < piece_.num_blocks()) return;
    block_ = 0;
    ++piece_.segment;
  }

 private:
  const AttentionInput* in_ = nullptr;
  Piece piece_{};
  int block_ = 0;
  int first_head_ = 0;
  int end_head_ = 0;
  int end_segment_ = 0;
};

// Which segments a query row sees at least one position of.
inline int num_segments_of(int position) { return position / kSegment + 1; }

// Scores beyond `count` of them, up to whole vectors, become -infinity. Returns the maximum.
inline float mask_and_find_maximum(float* scores, int count) {
  const F16 lowest = F16::set(-std::numeric_limits<float>::infinity());
  F16 largest = lowest;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) largest = max(largest, F16::load(scores + i));
  if (i < count) {
    const F16 masked = select_first(count - i, F16::load(scores + i), lowest);
    masked.store(scores + i);
    largest = max(largest, masked);
  }
  return reduce_max(largest);
}

}  // namespace slipstream
