// Integer dot products: exact in int32, so every level and every path gives the same bits.
//
//   pair:    C[row][32]  = sum_k x[row][k] * w[column][k]      (k in tiles of 64)
//   scores:  C[row][16]  = sum_d q[row][d] * key[slot][d]      (q in two planes)
//   values:  C[row][dim] = sum_t p[row][t] * value[t][dim]     (t over the 32 slots of a block)
#pragma once

#include "model.h"
#include "vector.h"

namespace slipstream {

// Activations of a batch: x = scale * (low + 256 * high); the high plane covers the outliers only.
struct QuantizedRows {
  int8_t* low;    // [rows padded to 16][k]
  int8_t* high;   // [rows padded to 16][kNumOutliers]
  float* scales;  // [rows]
};

constexpr int kTileRows = 16;
constexpr int kPrefetchBytes = 8192;

#if defined(__AMX_INT8__)

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

inline void load_config(const TileConfig& config) {
  // GCC may drop the stores before: it does not know that ldtilecfg reads them.
  asm volatile("" ::: "memory");
  _tile_loadconfig(&config);
}

inline void set_tile(TileConfig& config, int tile, int rows, int bytes) {
  config.rows[tile] = static_cast<uint8_t>(rows);
  config.column_bytes[tile] = static_cast<uint16_t>(bytes);
}

// Matrices: tiles 0-3 are C, 4 and 5 A with `a_rows` rows, 6 and 7 B.
inline void configure_matrix_tiles(int a_rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) set_tile(config, tile, a_rows, 64);
  set_tile(config, 6, 16, 64);
  set_tile(config, 7, 16, 64);
  load_config(config);
}

// Attention: 0 and 1 are C, 4 and 5 queries, 6 keys, 2 weights of one block, 3 and 7 values.
inline void configure_attention_tiles(int a_rows) {
  TileConfig config;
  for (int tile : {0, 1, 4, 5}) set_tile(config, tile, a_rows, 64);
  set_tile(config, 6, 16, 64);
  set_tile(config, 2, a_rows, kBlockSize);
  set_tile(config, 3, kBlockSize / 4, 64);
  set_tile(config, 7, kBlockSize / 4, 64);
  load_config(config);
}

#endif

#if defined(__AVX512VNNI__)

inline __m512i broadcast_unsigned(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  // x + 128 as unsigned; the column sums take the 128 back.
  return _mm512_set1_epi32(four ^ static_cast<int32_t>(0x80808080u));
}

// Sums of some rows over the even and odd groups of four inputs. Members instead of an array: GCC
// keeps these in registers.
template <int kRows>
struct StreamSums {
  __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
  StreamSums<kRows - 1> others;

  void add(const int8_t* x, int64_t ldx, __m512i w0, __m512i w1) {
    even = _mm512_dpbusd_epi32(even, broadcast_unsigned(x), w0);
    odd = _mm512_dpbusd_epi32(odd, broadcast_unsigned(x + 4), w1);
    others.add(x + ldx, ldx, w0, w1);
  }
  void store(int32_t* out) const {
    _mm512_storeu_si512(out, _mm512_add_epi32(even, odd));
    others.store(out + kPair);
  }
};

template <>
struct StreamSums<0> {
  void add(const int8_t*, int64_t, __m512i, __m512i) {}
  void store(int32_t*) const {}
};

// Rows [0, kRows) against one pair of column tiles, the weights streaming by once. Tiles have
// `tile_k` input columns, of which the first `k` are used.
template <int kRows>
inline void pair_streaming(const int8_t* weights, int tile_k, int k, const int8_t* x, int ldx,
                           int32_t* out) {
  for (int tile = 0; tile < 2; ++tile) {
    const int8_t* w = weights + static_cast<int64_t>(tile) * tile_k * 16;
    StreamSums<kRows> sums;
    for (int group = 0; group < k / 4; group += 2) {
      const int8_t* pair = w + group * 64;
      _mm_prefetch(reinterpret_cast<const char*>(pair + kPrefetchBytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(pair + kPrefetchBytes + 64), _MM_HINT_T0);
      sums.add(x + group * 4, ldx, _mm512_loadu_si512(pair), _mm512_loadu_si512(pair + 64));
    }
    sums.store(out + tile * 16);
  }
}

#endif

// Plain form of a pair for any machine. Signed, no compensation needed.
inline void pair_plain(const int8_t* weights, int tile_k, int k, const int8_t* x, int ldx,
                       int num_rows, int32_t* out) {
  for (int row = 0; row < num_rows; ++row) {
    for (int tile = 0; tile < 2; ++tile) {
      const int8_t* w = weights + static_cast<int64_t>(tile) * tile_k * 16;
#if defined(__AVX2__)
      // Four columns by two partial sums a register: 16-bit products can't overflow 32 bits.
      __m256i sums[4];
      for (auto& sum : sums) sum = _mm256_setzero_si256();
      for (int group = 0; group < k / 4; ++group) {
        int32_t four;
        std::memcpy(&four, x + row * ldx + group * 4, 4);
        const __m256i input = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
        for (int part = 0; part < 4; ++part) {
          const __m128i bytes =
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + group * 64 + part * 16));
          sums[part] =
              _mm256_add_epi32(sums[part], _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), input));
        }
      }
      for (int part = 0; part < 4; ++part) {
        alignas(32) int32_t halves[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(halves), sums[part]);
        for (int c = 0; c < 4; ++c) {
          out[row * kPair + tile * 16 + part * 4 + c] = halves[2 * c] + halves[2 * c + 1];
        }
      }
#else
      int32_t sums[16] = {};
      for (int group = 0; group < k / 4; ++group) {
        const int8_t* input = x + row * ldx + group * 4;
        for (int c = 0; c < 16; ++c) {
          const int8_t* four = w + group * 64 + c * 4;
          sums[c] += input[0] * four[0] + input[1] * four[1] + input[2] * four[2] +
                     input[3] * four[3];
        }
      }
      std::memcpy(out + row * kPair + tile * 16, sums, sizeof sums);
#endif
    }
  }
}

// Attention scores of up to 16 query rows against 16 slots. q = low + 256 * high, [rows][dim].
inline void score_tile(const int8_t* q_low, const int8_t* q_high, int num_rows, int dim,
                       const int8_t* keys, int32_t* out) {
#if defined(__AMX_INT8__)
  _tile_zero(0);
  _tile_zero(1);
  for (int d = 0; d < dim; d += kStep) {
    _tile_loadd(6, keys + d * 16, 64);
    _tile_loadd(4, q_low + d, dim);
    _tile_loadd(5, q_high + d, dim);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 5, 6);
  }
  alignas(64) int32_t high[kTileRows * 16];
  _tile_stored(0, out, 64);
  _tile_stored(1, high, 64);
  for (int row = 0; row < num_rows; ++row) {
    (I16::load(out + row * 16) + shift_left<8>(I16::load(high + row * 16))).store(out + row * 16);
  }
#else
  for (int row = 0; row < num_rows; ++row) {
    int32_t sums[16] = {};
    for (int group = 0; group < dim / 4; ++group) {
      const int8_t* low = q_low + row * dim + group * 4;
      const int8_t* high = q_high + row * dim + group * 4;
      for (int slot = 0; slot < 16; ++slot) {
        const int8_t* four = keys + group * 64 + slot * 4;
        for (int i = 0; i < 4; ++i) sums[slot] += (low[i] + 256 * high[i]) * four[i];
      }
    }
    std::memcpy(out + row * 16, sums, sizeof sums);
  }
#endif
}

// Weighted values of one block: p is unsigned [16][32], values [8][dim][4 slots], out [16][dim].
inline void value_tiles(const uint8_t* p, int num_rows, int dim, const int8_t* values,
                        int32_t* out) {
#if defined(__AMX_INT8__)
  _tile_loadd(2, p, kBlockSize);
  for (int d = 0; d < dim; d += 32) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(3, values + d * 4, dim * 4);
    _tile_loadd(7, values + d * 4 + 64, dim * 4);
    _tile_dpbusd(0, 2, 3);
    _tile_dpbusd(1, 2, 7);
    _tile_stored(0, out + d, dim * 4);
    _tile_stored(1, out + d + 16, dim * 4);
  }
  (void)num_rows;
#else
  for (int row = 0; row < num_rows; ++row) {
    int32_t* sums = out + row * dim;
    std::memset(sums, 0, sizeof(int32_t) * static_cast<size_t>(dim));
    for (int group = 0; group < kBlockSize / 4; ++group) {
      const uint8_t* weights = p + row * kBlockSize + group * 4;
      for (int d = 0; d < dim; ++d) {
        const int8_t* four = values + (group * dim + d) * 4;
        sums[d] += weights[0] * four[0] + weights[1] * four[1] + weights[2] * four[2] +
                   weights[3] * four[3];
      }
    }
  }
#endif
}

}  // namespace slipstream
