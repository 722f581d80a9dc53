// What a step takes for granted, asserted: nothing is checked, and no time taken, with NDEBUG.
//
// Whoever fills in the structs owns these invariants. A wrong one would be memory read or written
// out of place.
#pragma once

#include <cassert>
#include <cstdint>

#include "dot_i8.h"
#include "model.h"

namespace slipstream {

#if defined(NDEBUG)

inline void check_integrity(const Model&, const Step&) {}

#else

inline bool is_aligned(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

inline void check_linear(const Linear& linear, int n, int k) {
  assert(linear.n == n && "outputs come in whole pairs of tiles");
  assert(linear.k == k && "inputs are as wide as what they come from");
  assert(is_aligned(linear.weights, 64) && "weights are read in cache lines");
  if (is_float(linear.format)) return;
  const bool is_int4 = linear.format == kInt4;
  assert((linear.format == kInt8 || is_int4) && "weights have a known format");
  assert(k % kStep == 0 && "integer inputs come in whole tiles");
  assert(linear.scales != nullptr && "integers have scales");
  assert((is_int4 || linear.sums != nullptr) && "int8 has sums");
  assert((linear.hadamard == 0 || (linear.hadamard == kHadamard && k % kHadamard == 0)) &&
         "inputs are rotated in whole blocks");
  assert((linear.num_outliers == 0 || linear.num_outliers == kNumOutliers ||
          (is_int4 && linear.num_outliers == k)) &&
         "outliers fill one tile, or all");
  assert((linear.num_outliers == 0 || is_int4 || linear.outlier_sums != nullptr) && "outliers have sums");
  assert((linear.outliers == nullptr || (is_int4 && linear.num_outliers == kNumOutliers)) &&
         "outliers of a tile may stand anywhere");
  for (int i = 0; linear.outliers != nullptr && i < kNumOutliers / 4; ++i) {
    assert(linear.outliers[i] >= 0 && linear.outliers[i] < k / 4 && "outliers are inputs");
  }
  assert((linear.hadamard == 0 || linear.num_outliers == 0) && "a rotated input has no outliers");
  for (int i = 0; linear.columns != nullptr && i < k; ++i) {
    assert(linear.columns[i] >= 0 && linear.columns[i] < k && "columns are an order of the inputs");
  }
}

inline void check_model(const Model& m) {
  const int dim = m.head_dim, num_heads = m.num_heads, num_kv_heads = m.num_kv_heads;
  assert((is_float(m.kv_format) || m.kv_format == kInt8) && "KV has a known format");
  assert((dim == 64 || dim == 128 || dim == 256) && "heads have one of three sizes");
  assert(num_kv_heads > 0 && num_heads % num_kv_heads == 0 && "KV heads have as many query heads each");
  assert(num_heads / num_kv_heads <= kTileRows && "the query heads of a KV head fit one tile");
  assert(m.hidden % kPair == 0 && m.intermediate % 16 == 0 && "rows are whole vectors");
  for (int i = 0; i < m.num_layers; ++i) {
    const Layer& layer = m.layers[i];
    check_linear(layer.qkv, (num_heads + 2 * num_kv_heads) * dim, m.hidden);
    check_linear(layer.output, m.hidden, num_heads * dim);
    check_linear(layer.gate_up, 2 * m.intermediate, m.hidden);
    check_linear(layer.down, m.hidden, m.intermediate);
  }
  assert(m.head.format != kInt4 && "embeddings are read from the head in floats or int8");
  for (int i = 0; i < m.num_layers; ++i) {
    const Layer& layer = m.layers[i];
    for (const Linear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      assert(is_float(linear->format) == is_float(m.head.format) && "inputs are floats, or integers");
    }
  }
  check_linear(m.head, (m.vocab + kPair - 1) / kPair * kPair, m.hidden);
}

inline void check_integrity(const Model& m, const Step& s) {
  check_model(m);
  int num_rows = 0;
  for (int i = 0; i < s.num_sequences; ++i) {
    const Sequence& sequence = s.sequences[i];
    const int end_position = sequence.num_computed + sequence.num_rows;
    assert(sequence.first_row == num_rows && "sequences' rows lie one after another");
    assert(sequence.num_computed >= 0 && end_position <= m.max_context && "positions are in the context");
    for (int block = 0; block * kBlockSize < end_position; ++block) {
      assert(s.block_tables[sequence.first_block + block] >= 0 && "a position has a block");
    }
    num_rows += sequence.num_rows;
  }
  assert(num_rows == s.num_rows && "every row has a sequence");
  for (int row = 0; row < s.num_rows; ++row) {
    // A head may know fewer tokens than an embedding of its own, whose rows nobody counts here.
    assert(s.token_ids[row] >= 0 && (m.embedding != nullptr || s.token_ids[row] < m.vocab) &&
           "tokens are in the vocabulary");
  }
  assert(s.num_logit_rows <= s.num_rows && "a row has one row of logits at most");
  for (int i = 0; i < s.num_logit_rows; ++i) {
    assert(s.logit_rows[i] >= 0 && s.logit_rows[i] < s.num_rows && "logits are of rows of the batch");
  }
  assert(s.block_bytes == KvPlace().offset_of(m, m.num_layers, 0) && "a block holds all layers");
  assert(is_aligned(s.kv, alignof(float)) && "KV holds floats");
}

#endif

}  // namespace slipstream
