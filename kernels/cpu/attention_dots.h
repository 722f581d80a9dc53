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
#include "register_blocks.h"
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

// Scores of some rows of queries with a block: out [2 halves, `half_stride` apart][rows][16].
template <int kRows>
SLIPSTREAM_APART void score_rows(const int8_t* q, int dim, const int8_t* keys, const int32_t* starts,
                                 int32_t* out, int half_stride) {
  BlockSums<kRows, 2> sums;
  sums.start(starts);
  for (int d = 0; d < dim; d += 4) {
    const int8_t* tile = keys + d * 16;
    sums.add_unsigned({made_unsigned(_mm512_loadu_si512(tile)),
                       made_unsigned(_mm512_loadu_si512(tile + 16 * dim))},
                      q + d, dim);
  }
  sums.give([&](int row, int half, __m512i sum) {
    _mm512_storeu_si512(out + half * half_stride + row * 16, sum);
  });
}

// Weighted values of some rows over all blocks of a segment, 64 of the dimensions from d on.
template <int kRows>
SLIPSTREAM_APART void value_rows(const uint8_t* p, int64_t block_stride, int dim, int d,
                                 const int8_t* const* values, int num_blocks, int32_t* out) {
  BlockSums<kRows, 4> sums;
  sums.clear();
  for (int b = 0; b < num_blocks; ++b) {
    for (int group = 0; group < kBlockSize / 4; ++group) {
      const int8_t* v = values[b] + (group * dim + d) * 4;
      sums.add_signed({_mm512_loadu_si512(v), _mm512_loadu_si512(v + 64), _mm512_loadu_si512(v + 128),
                       _mm512_loadu_si512(v + 192)},
                      p + b * block_stride + group * 4, kBlockSize);
    }
  }
  sums.give([&](int row, int vector, __m512i sum) {
    _mm512_storeu_si512(out + row * dim + d + vector * 16, sum);
  });
}

#endif

// Where the sums of each row of queries begin: see `start_of`. Only the AVX-512 level looks at them.
inline void find_starts([[maybe_unused]] const int8_t* q, [[maybe_unused]] int num_rows,
                        [[maybe_unused]] int dim, [[maybe_unused]] int32_t* starts) {
#if defined(__AVX512VNNI__) && !defined(__AMX_INT8__)
  for (int row = 0; row < num_rows; ++row) starts[row] = start_of(q + row * dim, dim);
#endif
}

// Scores of all planes of `num_queries` queries: q is [2][queries][dim], out [2 halves][2][queries][16].
// `starts` is of each row of q.
inline void score_block(const int8_t* q, int num_queries, int dim, const int8_t* keys,
                        [[maybe_unused]] const int32_t* starts, int32_t* out) {
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
  each_block<12>(num_rows, [&](int row, auto count) {
    score_rows<count.value>(q + row * dim, dim, keys, starts + row, out + row * 16, num_rows * 16);
  });
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
  each_block<6>(num_rows, [&](int row, auto count) {
    for (int d = 0; d < dim; d += 64) {
      value_rows<count.value>(p + row * kBlockSize, static_cast<int64_t>(num_rows) * kBlockSize, dim, d,
                              values, num_blocks, out + row * dim);
    }
  });
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
