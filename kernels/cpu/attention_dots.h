// Integer dot products of attention over int8 KV: exact in int32, the same bits at every level.
//
//   scores: C[row][slot] = sum_d q[row][d] * key[slot][d]      (one block of 32 slots)
//   values: C[row][d]    = sum_t p[row][t] * value[t][d]       (all blocks of a segment)
//
// Queries and weights have 16 bits in two planes, x = low + 256 * high. A row of a plane is a row of
// the product; the planes of a group lie behind one another, [plane][query], so that both go through
// one tile while they fit.
#pragma once

#include "attention_types.h"
#include "dot_i8.h"
#include "model.h"
#include "vector.h"

namespace slipstream {

// Whether both planes of so many queries fill one tile.
inline bool is_joint(int num_queries) { return 2 * num_queries <= kTileRows; }

#if defined(__AMX_INT8__)

// 0 to 3 are sums, 4 queries, 5 keys, 6 weights, 7 values.
inline void configure_attention_tiles(int num_queries) {
  const int rows = is_joint(num_queries) ? 2 * num_queries : num_queries;
  TileConfig config;
  for (int tile = 0; tile < 5; ++tile) set_tile(config, tile, rows, 64);
  set_tile(config, 5, 16, 64);
  set_tile(config, 6, rows, kBlockSize);
  set_tile(config, 7, kBlockSize / 4, 64);
  load_config(config);
}

#elif defined(__AVX512VNNI__)

// Sums of some rows of queries with the same keys. Members instead of an array: GCC keeps these in
// registers.
template <int kRows>
struct KeySums {
  __m512i sum = _mm512_setzero_si512();
  KeySums<kRows - 1> others;

  void add(const int8_t* q, int dim, __m512i keys) {
    int32_t four;
    std::memcpy(&four, q, 4);
    sum = _mm512_dpbusd_epi32(sum, keys, _mm512_set1_epi32(four));
    others.add(q + dim, dim, keys);
  }
  // Keys went in as unsigned, 128 too large: `excess` takes that out again.
  void store(const int32_t* excess, int32_t* out) const {
    _mm512_storeu_si512(out, _mm512_sub_epi32(sum, _mm512_set1_epi32(*excess)));
    others.store(excess + 1, out + 16);
  }
};

template <>
struct KeySums<0> {
  void add(const int8_t*, int, __m512i) {}
  void store(const int32_t*, int32_t*) const {}
};

template <int kRows>
inline void score_rows(const int8_t* q, int dim, const int8_t* keys, int32_t* out, int half_stride) {
  const __m512i flip = _mm512_set1_epi32(static_cast<int32_t>(0x80808080u));
  int32_t excess[kRows] = {};
  for (int row = 0; row < kRows; ++row) {
    for (int d = 0; d < dim; ++d) excess[row] += 128 * q[row * dim + d];
  }
  for (int half = 0; half < 2; ++half) {
    KeySums<kRows> sums;
    const int8_t* tile = keys + half * 16 * dim;
    for (int d = 0; d < dim; d += 4) {
      sums.add(q + d, dim, _mm512_xor_si512(_mm512_loadu_si512(tile + d * 16), flip));
    }
    sums.store(excess, out + half * half_stride);
  }
}

#endif

// Scores of all planes of `num_queries` queries: q is [2][queries][dim], out [2 halves][2][queries][16].
inline void score_block(const int8_t* q, int num_queries, int dim, const int8_t* keys, int32_t* out) {
  const int num_rows = 2 * num_queries;
#if defined(__AMX_INT8__)
  const bool joint = is_joint(num_queries);
  const int8_t* other_keys = keys + 16 * dim;
  _tile_zero(0);
  _tile_zero(1);
  if (joint) {
    for (int d = 0; d < dim; d += kStep) {
      _tile_loadd(4, q + d, dim);
      _tile_loadd(5, keys + d * 16, 64);
      _tile_dpbssd(0, 4, 5);
      _tile_loadd(5, other_keys + d * 16, 64);
      _tile_dpbssd(1, 4, 5);
    }
    _tile_stored(0, out, 64);
    _tile_stored(1, out + num_rows * 16, 64);
    return;
  }
  const int8_t* q_high = q + num_queries * dim;
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < dim; d += kStep) {
    _tile_loadd(4, q + d, dim);
    _tile_loadd(5, keys + d * 16, 64);
    _tile_dpbssd(0, 4, 5);
    _tile_loadd(5, other_keys + d * 16, 64);
    _tile_dpbssd(1, 4, 5);
    _tile_loadd(4, q_high + d, dim);
    _tile_dpbssd(3, 4, 5);
    _tile_loadd(5, keys + d * 16, 64);
    _tile_dpbssd(2, 4, 5);
  }
  _tile_stored(0, out, 64);
  _tile_stored(1, out + num_rows * 16, 64);
  _tile_stored(2, out + num_queries * 16, 64);
  _tile_stored(3, out + (num_rows + num_queries) * 16, 64);
#elif defined(__AVX512VNNI__)
  const int half_stride = num_rows * 16;
  int row = 0;
  for (; row + 8 <= num_rows; row += 8) score_rows<8>(q + row * dim, dim, keys, out + row * 16, half_stride);
  for (; row < num_rows; row += 2) score_rows<2>(q + row * dim, dim, keys, out + row * 16, half_stride);
#else
  for (int half = 0; half < 2; ++half) {
    const int8_t* tile = keys + half * 16 * dim;
    for (int row = 0; row < num_rows; ++row) {
      int32_t sums[16] = {};
      for (int d = 0; d < dim; d += 4) {
        const int8_t* input = q + row * dim + d;
        for (int slot = 0; slot < 16; ++slot) {
          const int8_t* four = tile + d * 16 + slot * 4;
          sums[slot] +=
              input[0] * four[0] + input[1] * four[1] + input[2] * four[2] + input[3] * four[3];
        }
      }
      std::memcpy(out + (half * num_rows + row) * 16, sums, sizeof sums);
    }
  }
#endif
}

// Weighted values: p is unsigned [block][2][queries][32], values[b] is [8][dim][4 slots],
// out [2][queries][dim].
inline void value_segment(const uint8_t* p, int num_queries, int dim, const int8_t* const* values,
                          int num_blocks, int32_t* out) {
  const int num_rows = 2 * num_queries;
#if defined(__AMX_INT8__)
  // The compiler does not know that the tiles read what was just stored.
  asm volatile("" ::: "memory");
  if (is_joint(num_queries)) {
    for (int d = 0; d < dim; d += 64) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int b = 0; b < num_blocks; ++b) {
        _tile_loadd(6, p + b * num_rows * kBlockSize, kBlockSize);
        _tile_loadd(7, values[b] + d * 4, dim * 4);
        _tile_dpbusd(0, 6, 7);
        _tile_loadd(7, values[b] + d * 4 + 64, dim * 4);
        _tile_dpbusd(1, 6, 7);
        _tile_loadd(7, values[b] + d * 4 + 128, dim * 4);
        _tile_dpbusd(2, 6, 7);
        _tile_loadd(7, values[b] + d * 4 + 192, dim * 4);
        _tile_dpbusd(3, 6, 7);
      }
      _tile_stored(0, out + d, dim * 4);
      _tile_stored(1, out + d + 16, dim * 4);
      _tile_stored(2, out + d + 32, dim * 4);
      _tile_stored(3, out + d + 48, dim * 4);
    }
    return;
  }
  int32_t* out_high = out + num_queries * dim;
  for (int d = 0; d < dim; d += 32) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int b = 0; b < num_blocks; ++b) {
      const uint8_t* low = p + b * num_rows * kBlockSize;
      _tile_loadd(6, low, kBlockSize);
      _tile_loadd(7, values[b] + d * 4, dim * 4);
      _tile_dpbusd(0, 6, 7);
      _tile_loadd(7, values[b] + d * 4 + 64, dim * 4);
      _tile_dpbusd(1, 6, 7);
      _tile_loadd(6, low + num_queries * kBlockSize, kBlockSize);
      _tile_dpbusd(3, 6, 7);
      _tile_loadd(7, values[b] + d * 4, dim * 4);
      _tile_dpbusd(2, 6, 7);
    }
    _tile_stored(0, out + d, dim * 4);
    _tile_stored(1, out + d + 16, dim * 4);
    _tile_stored(2, out_high + d, dim * 4);
    _tile_stored(3, out_high + d + 16, dim * 4);
  }
#elif defined(__AVX512VNNI__)
  for (int row = 0; row < num_rows; ++row) {
    for (int d = 0; d < dim; d += 64) {
      __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
      for (int b = 0; b < num_blocks; ++b) {
        const uint8_t* weights = p + (b * num_rows + row) * kBlockSize;
        for (int group = 0; group < kBlockSize / 4; ++group) {
          int32_t four;
          std::memcpy(&four, weights + group * 4, 4);
          const __m512i weight = _mm512_set1_epi32(four);
          const int8_t* v = values[b] + (group * dim + d) * 4;
          s0 = _mm512_dpbusd_epi32(s0, weight, _mm512_loadu_si512(v));
          s1 = _mm512_dpbusd_epi32(s1, weight, _mm512_loadu_si512(v + 64));
          s2 = _mm512_dpbusd_epi32(s2, weight, _mm512_loadu_si512(v + 128));
          s3 = _mm512_dpbusd_epi32(s3, weight, _mm512_loadu_si512(v + 192));
        }
      }
      int32_t* sums = out + row * dim + d;
      _mm512_storeu_si512(sums, s0);
      _mm512_storeu_si512(sums + 16, s1);
      _mm512_storeu_si512(sums + 32, s2);
      _mm512_storeu_si512(sums + 48, s3);
    }
  }
#else
  for (int row = 0; row < num_rows; ++row) {
    int32_t* sums = out + row * dim;
    std::memset(sums, 0, sizeof(int32_t) * static_cast<size_t>(dim));
    for (int b = 0; b < num_blocks; ++b) {
      for (int group = 0; group < kBlockSize / 4; ++group) {
        const uint8_t* weights = p + (b * num_rows + row) * kBlockSize + group * 4;
        for (int d = 0; d < dim; ++d) {
          const int8_t* four = values[b] + (group * dim + d) * 4;
          sums[d] += weights[0] * four[0] + weights[1] * four[1] + weights[2] * four[2] +
                     weights[3] * four[3];
        }
      }
    }
  }
#endif
}

}  // namespace slipstream
