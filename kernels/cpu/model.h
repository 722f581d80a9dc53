// What a step works on: weights as they lie in the packed file, rows of a batch, workspace.
//
// Plain structs, filled in by `loader.py`; the names there and here must agree.
#pragma once

#include <cstdint>

namespace slipstream {

constexpr int kBlockSize = 32;       // token positions of a KV block
constexpr int kPair = 32;            // output columns that are computed together
constexpr int kStep = 64;            // input columns of one integer tile
constexpr int kNumOutliers = 64;     // strongest input columns, kept in 16 bits: one tile
constexpr int kSegment = 256;        // attention merges partial results at these absolute positions
constexpr int kHadamard = 128;       // block of the rotation before the down projection

enum Format : int32_t { kFloat32 = 0, kInt8 = 1, kInt4 = 2, kBf16 = 3 };

// Formats whose arithmetic is float32.
inline bool is_float(int32_t format) { return format == kFloat32 || format == kBf16; }

// A matrix [n, k], packed for streaming. y = x W^T.
//   float32, bf16: [n/16][k][16]
//   int8:    [n/16][k/4][16][4] with a scale and a column sum for each output; input columns are in
//            the order `columns` (strongest first), so that one tile holds the outliers
//   int4:    see unpack_i4.h; with a scale for each output. Outliers may stand anywhere, in fours, or
//            be all inputs
struct Linear {
  int32_t n;              // multiple of 32
  int32_t k;              // multiple of 64 for int8 and int4
  int32_t num_outliers;   // 0 or kNumOutliers; for int4 also k
  int32_t hadamard;       // block of the input's rotation, 0 for none
  int32_t format;
  int32_t reserved;
  const void* weights;
  const float* scales;          // [n]
  const int32_t* sums;          // [n] sum over k, for unsigned dot products
  const int32_t* outlier_sums;  // [n] sum over the outlier columns
  const int32_t* columns;       // [k] which input column stands at a place, or null
  const int32_t* outliers;      // [num_outliers / 4] places in fours, or null: the first ones
};

struct Layer {
  const float* attention_norm;  // [hidden]
  const float* mlp_norm;        // [hidden]
  const float* key_mean;        // [num_kv_heads, head_dim], subtracted from keys; or null
  Linear qkv;                   // heads of q, k, v one after another
  Linear output;
  Linear gate_up;  // tiles of 16 columns alternate: gate, up, gate, up
  Linear down;
};

struct Model {
  int32_t num_layers;
  int32_t hidden;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t intermediate;
  int32_t vocab;
  int32_t kv_format;
  int32_t max_context;
  float epsilon;
  const float* cosines;  // [max_context, head_dim / 2]
  const float* sines;
  const float* final_norm;
  const Layer* layers;
  Linear head;
  const void* embedding;  // [vocab or more, hidden] bf16 beside such matrices, else float32; or
                          // null: the head's rows, dequantized
};

struct Sequence {
  int32_t first_row;
  int32_t num_rows;
  int32_t num_computed;  // positions before the first row
  int32_t first_block;   // index into Step::block_tables
};

struct Step {
  int32_t num_rows;
  int32_t num_sequences;
  int32_t num_logit_rows;
  int32_t num_threads;
  const int32_t* token_ids;     // [num_rows]
  const Sequence* sequences;    // [num_sequences]
  const int32_t* block_tables;  // concatenated
  const int32_t* logit_rows;    // [num_logit_rows]
  float* logits;                // [num_logit_rows, vocab]
  uint8_t* kv;
  int64_t block_bytes;
  int32_t is_unfused;  // one operation after the other through memory: the same bits, for comparison
  int32_t reserved;
  int64_t* phase_ns;  // [kNumPhases] (phases.h), to which the step adds its own; or null
};

// Where the parts of one (layer, kv head) lie within a block.
//   float32, bf16: block is [layer][key or value][kv head][slot][dim]
//   int8: block is [layer][kv head] of: keys [2][dim/4][16 slots][4], values [8][dim][4 slots],
//         key scales [32], value scales [32]
struct KvPlace {
  int64_t offset_of(const Model& m, int layer, int head) const {
    const int64_t one =
        m.kv_format == kInt8 ? int8_bytes(m.head_dim) : float_bytes(m.head_dim, m.kv_format);
    return (static_cast<int64_t>(layer) * m.num_kv_heads + head) * one;
  }
  static int64_t int8_bytes(int dim) { return 2LL * kBlockSize * dim + 2LL * kBlockSize * 4; }
  static int64_t float_bytes(int dim, int32_t format) {
    return 2LL * kBlockSize * dim * (format == kBf16 ? 2 : 4);
  }
};

}  // namespace slipstream
