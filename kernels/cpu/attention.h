// Causal attention over paged KV, in segments of 256 positions from 0, merged in ascending order.
//
//   score = q . k / sqrt(dim);  p = exp(score - max);  out = sum p v / sum p      (each query head)
//
// A row's partial result over a segment depends on the row and the segment alone, and partial results
// are merged in one order (online softmax, as in FlashAttention), whoever computed them: so neither
// the batch nor the chunking nor the threads can change a bit. All query rows of a sequence that fit
// a tile, and all query heads of a KV head, go together against a block: it is read once for them.
#pragma once

#include <limits>

#include "dot_i8.h"
#include "model.h"
#include "rows.h"
#include "vector.h"

namespace slipstream {

constexpr int kMaxDim = 256;

// Up to 16 query rows: (row of the batch, query head) with one KV head.
struct QueryGroup {
  int sequence;
  int first_row;  // of the batch
  int num_rows;
  int first_position;
  int end_position;  // positions that the last row sees
};

// Partial result of one query row over one segment.
struct Partial {
  float maximum;
  float sum;
  float values[kMaxDim];
};

inline float exp_scalar(float x) {
  float lanes[kLanes];
  exp(F16::set(x)).store(lanes);
  return lanes[0];
}

inline void merge(Partial& into, const Partial& next, int dim) {
  const float maximum = into.maximum > next.maximum ? into.maximum : next.maximum;
  const float a = exp_scalar(into.maximum - maximum), b = exp_scalar(next.maximum - maximum);
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
  const float* queries;    // [rows][qkv stride], rotated and scaled (float32)
  int query_stride;
  const int8_t* low;       // the same in two planes with a scale a (row, head) (int8)
  const int8_t* high;
  const float* scales;
};

inline const uint8_t* block_of(const AttentionInput& in, const QueryGroup& group, int kv_head,
                               int block_idx) {
  const Sequence& sequence = in.step.sequences[group.sequence];
  const int32_t block_id = in.step.block_tables[sequence.first_block + block_idx];
  return in.step.kv + block_id * in.step.block_bytes +
         KvPlace().offset_of(in.model, in.layer, kv_head);
}

// exp(score - max) in place, over `num_visible` positions; what lies beyond gets no weight.
inline void soften(float* scores, int width, int num_visible, Partial* partial) {
  F16 largest = F16::set(-std::numeric_limits<float>::infinity());
  for (int i = 0; i < width; i += kLanes) {
    const F16 masked = select_first(num_visible - i, F16::load(scores + i),
                                    F16::set(-std::numeric_limits<float>::infinity()));
    masked.store(scores + i);
    largest = max(largest, masked);
  }
  partial->maximum = reduce_max(largest);
  F16 sum = F16::zero();
  for (int i = 0; i < width; i += kLanes) {
    const F16 p = exp(F16::load(scores + i) - F16::set(partial->maximum));
    p.store(scores + i);
    sum = sum + p;
  }
  partial->sum = reduce_add(sum);
}

// One segment in float32: keys and values are rows of [slot][dim], dim = 16 * kVectors.
template <int kVectors>
struct FloatSegment {
  const AttentionInput& in;
  const QueryGroup& group;
  int kv_head, first, end, heads;
  const float* blocks[kSegment / kBlockSize];  // keys of each block; values lie a plane behind

  FloatSegment(const AttentionInput& input, const QueryGroup& of, int head, int segment)
      : in(input), group(of), kv_head(head), first(segment * kSegment) {
    const Model& m = in.model;
    heads = m.num_heads / m.num_kv_heads;
    end = group.end_position < first + kSegment ? group.end_position : first + kSegment;
    const Sequence& sequence = in.step.sequences[group.sequence];
    for (int b = 0; b * kBlockSize < end - first; ++b) {
      const int32_t id = in.step.block_tables[sequence.first_block + first / kBlockSize + b];
      blocks[b] = reinterpret_cast<const float*>(in.step.kv + id * in.step.block_bytes) +
                  2LL * in.layer * plane() + static_cast<int64_t>(kv_head) * kBlockSize * dim();
    }
  }
  static constexpr int dim() { return kVectors * kLanes; }
  int64_t plane() const {
    return static_cast<int64_t>(in.model.num_kv_heads) * kBlockSize * dim();
  }
  const float* key(int i) const { return blocks[i / kBlockSize] + i % kBlockSize * dim(); }
  const float* value(int i) const { return key(i) + plane(); }
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
        const float* v = value(p) + d * kLanes;
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
      const int width = (count + kLanes - 1) / kLanes * kLanes;
      for (int p = count; p < width; ++p) scores[p] = 0.0f;
      score(i, count, scores);
      soften(scores, width, count, &partials[i]);
      gather(count, scores, partials[i].values);
    }
  }
};

inline void float_segment(const AttentionInput& in, const QueryGroup& group, int kv_head,
                          int segment, Partial* partials) {
  switch (in.model.head_dim) {
    case 64:
      return FloatSegment<4>(in, group, kv_head, segment).attend(partials);
    case 128:
      return FloatSegment<8>(in, group, kv_head, segment).attend(partials);
    default:
      return FloatSegment<16>(in, group, kv_head, segment).attend(partials);
  }
}

// One segment in int8: exact integer dot products, weights as 8 bits with a scale a row and block.
inline void int8_segment(const AttentionInput& in, const QueryGroup& group, int kv_head, int segment,
                         Partial* partials) {
  const Model& m = in.model;
  const int heads = m.num_heads / m.num_kv_heads, dim = m.head_dim;
  const int first = segment * kSegment;
  const int end = group.end_position < first + kSegment ? group.end_position : first + kSegment;
  const int num_blocks = (end - first + kBlockSize - 1) / kBlockSize;
  const int num_queries = group.num_rows * heads;
  const int64_t query = (static_cast<int64_t>(group.first_row) * m.num_kv_heads +
                         static_cast<int64_t>(kv_head) * group.num_rows) * heads;
  const int8_t* low = in.low + query * dim;
  const int8_t* high = in.high + query * dim;
  const float* query_scales = in.scales + query;
  alignas(64) float scores[kTileRows][kSegment];
  alignas(64) int32_t tile[kTileRows * 16];
  const int key_bytes = kBlockSize * dim;
  for (int b = 0; b < num_blocks; ++b) {
    const auto* block = reinterpret_cast<const int8_t*>(
        block_of(in, group, kv_head, first / kBlockSize + b));
    const auto* key_scales = reinterpret_cast<const float*>(block + 2 * key_bytes);
    for (int half = 0; half < 2; ++half) {
      score_tile(low, high, num_queries, dim, block + half * key_bytes / 2, tile);
      const F16 slot_scales = F16::load(key_scales + half * 16);
      for (int i = 0; i < num_queries; ++i) {
        const F16 score = to_float(I16::load(tile + i * 16)) * (slot_scales * F16::set(query_scales[i]));
        score.store(&scores[i][b * kBlockSize + half * 16]);
      }
    }
  }
  alignas(64) uint8_t weights[kSegment / kBlockSize][kTileRows * kBlockSize];
  float weight_scales[kSegment / kBlockSize][kTileRows];
  const int width = num_blocks * kBlockSize;
  for (int i = 0; i < num_queries; ++i) {
    const int visible = group.first_position + i / heads + 1 - first;
    const int num_visible = visible < end - first ? visible : end - first;
    if (num_visible <= 0) {
      for (int b = 0; b < num_blocks; ++b) {
        std::memset(weights[b] + i * kBlockSize, 0, kBlockSize);
        weight_scales[b][i] = 0.0f;
      }
      continue;
    }
    soften(scores[i], width, num_visible, &partials[i]);
    std::memset(partials[i].values, 0, sizeof(float) * static_cast<size_t>(dim));
    for (int b = 0; b < num_blocks; ++b) {
      const auto* block = block_of(in, group, kv_head, first / kBlockSize + b);
      const auto* value_scales =
          reinterpret_cast<const float*>(block + 2 * key_bytes) + kBlockSize;
      F16 p[2];
      for (int half = 0; half < 2; ++half) {
        const int slot = b * kBlockSize + half * 16;
        p[half] = select_first(num_visible - slot,
                               F16::load(&scores[i][slot]) * F16::load(value_scales + half * 16),
                               F16::zero());
      }
      const float largest = reduce_max(max(p[0], p[1]));
      weight_scales[b][i] = largest / 255.0f;
      const F16 inverse = F16::set(largest > 0.0f ? 255.0f / largest : 0.0f);
      for (int half = 0; half < 2; ++half) {
        store_bytes(round_to_int(p[half] * inverse),
                    reinterpret_cast<int8_t*>(weights[b]) + i * kBlockSize + half * 16);
      }
    }
  }
  alignas(64) int32_t sums[kTileRows * kMaxDim];
  for (int b = 0; b < num_blocks; ++b) {
    const auto* block = reinterpret_cast<const int8_t*>(
        block_of(in, group, kv_head, first / kBlockSize + b));
    value_tiles(weights[b], num_queries, dim, block + key_bytes, sums);
    for (int i = 0; i < num_queries; ++i) {
      if (weight_scales[b][i] == 0.0f) continue;
      const F16 scale = F16::set(weight_scales[b][i]);
      float* out = partials[i].values;
      for (int d = 0; d < dim; d += kLanes) {
        fma(to_float(I16::load(sums + i * dim + d)), scale, F16::load(out + d)).store(out + d);
      }
    }
  }
}

inline void attend_segment(const AttentionInput& in, const QueryGroup& group, int kv_head,
                           int segment, Partial* partials) {
  if (in.model.kv_format == kInt8) {
    int8_segment(in, group, kv_head, segment, partials);
  } else {
    float_segment(in, group, kv_head, segment, partials);
  }
}

// Which segments a query row sees at least one position of.
inline int num_segments_of(int position) { return position / kSegment + 1; }

}  // namespace slipstream
