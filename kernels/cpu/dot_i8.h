// Integer dot products of matrices: exact in int32, so every level and path gives the same bits.
//
//   pair: C[row][32] = sum_k x[row][k] * w[column][k]      (k in tiles of 64)
#pragma once

#include "model.h"
#include "tiles.h"
#include "vector.h"

namespace slipstream {

// Activations of a batch: x = scale * (low + 256 * high); the high plane covers the outliers only.
struct QuantizedRows {
  int8_t* low;    // [rows padded to 32][k]
  int8_t* high;   // [rows padded to 32][outliers of the matrix]
  float* scales;  // [rows]
};

constexpr int kTileRows = 16;
constexpr int kPairRows = 2 * kTileRows;  // rows that are multiplied together
constexpr int kPrefetchBytes = 8192;

// What streams by is fetched twice: far ahead into the second-level cache, which can wait for many
// lines at once, and then into the first. (With one fetch, 8 KB ahead into the first, int4 took a
// quarter longer.)
constexpr int kFarBytes = 16384;
constexpr int kNearBytes = 1280;

inline void stream_ahead(const void* line) {
  const auto* p = static_cast<const int8_t*>(line);
  prefetch_far(p + kFarBytes);
  prefetch(p + kNearBytes);
}

#if defined(__AMX_INT8__)

// Matrices: tiles 0-3 are C, 4 and 5 A with `a_rows` rows, 6 and 7 B.
inline void configure_matrix_tiles(int a_rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) set_tile(config, tile, a_rows, 64);
  set_tile(config, 6, 16, 64);
  set_tile(config, 7, 16, 64);
  load_config(config);
}

inline void zero_32() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

#endif

#if defined(__AVX512VNNI__)

inline __m512i broadcast_unsigned(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  // x + 128 as unsigned; the column sums take the 128 back.
  return _mm512_set1_epi32(four ^ static_cast<int32_t>(0x80808080u));
}

// Sums of some rows over a tile, in four chains so that none waits for the last product.
// Members instead of an array: GCC keeps these in registers.
template <int kRows>
struct TileSums {
  __m512i chains[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                       _mm512_setzero_si512()};
  TileSums<kRows - 1> others;

  template <int kChain>
  void add(const int8_t* x, int64_t ldx, __m512i w) {
    chains[kChain] = _mm512_dpbusd_epi32(chains[kChain], broadcast_unsigned(x), w);
    others.template add<kChain>(x + ldx, ldx, w);
  }
  // take(row, sums)
  template <typename Take>
  void give(int row, const Take& take) const {
    take(row, I16{_mm512_add_epi32(_mm512_add_epi32(chains[0], chains[1]),
                                   _mm512_add_epi32(chains[2], chains[3]))});
    others.give(row + 1, take);
  }
};

template <>
struct TileSums<0> {
  template <int kChain>
  void add(const int8_t*, int64_t, __m512i) {}
  template <typename Take>
  void give(int, const Take&) const {}
};

// The first `k` input columns of a tile. Tiles are read one after another, as they lie in memory.
template <int kRows>
inline void stream_tile(TileSums<kRows>& sums, const int8_t* w, int k, const int8_t* x, int64_t ldx) {
  for (int group = 0; group < k / 4; group += 4) {
    const int8_t* lines = w + group * 64;
    const int8_t* inputs = x + group * 4;
    for (int i = 0; i < 4 * 64; i += 64) stream_ahead(lines + i);
    sums.template add<0>(inputs, ldx, _mm512_loadu_si512(lines));
    sums.template add<1>(inputs + 4, ldx, _mm512_loadu_si512(lines + 64));
    sums.template add<2>(inputs + 8, ldx, _mm512_loadu_si512(lines + 128));
    sums.template add<3>(inputs + 12, ldx, _mm512_loadu_si512(lines + 192));
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

}  // namespace slipstream
