// Weights of 4 bits, in groups of 32 input columns, as the integers of 16 bits that they stand for.
//
//   W = factor * code + offset      (each output column and group; |W| <= kMaxInt4Weight)
//
// Layout: [n/16][k/32] of 5 cache lines: four of codes [16][4], of which the low halves are inputs
// 8 i to 8 i + 3 and the high halves 8 i + 4 to 8 i + 7, and one of (factor, offset + 7 factor) [16].
#pragma once

#include <cassert>

#include "model.h"
#include "vector.h"

namespace slipstream {

constexpr int kGroup = 32;          // input columns with one factor and offset
constexpr int kGroupBytes = 5 * 64;  // of 16 output columns
constexpr int kCodeLines = 4;
constexpr int kMiddleCode = 7;
constexpr int kMaxInt4Weight = 32639;  // plus 128 it has 16 bits

inline int64_t tile_bytes_i4(const Linear& linear) {
  return static_cast<int64_t>(linear.k / kGroup) * kGroupBytes;
}

inline const uint8_t* tile_i4(const Linear& linear, int tile) {
  return static_cast<const uint8_t*>(linear.weights) + tile * tile_bytes_i4(linear);
}

namespace detail {

#if defined(__AVX512BW__)

// Eight inputs of 16 outputs: a line of codes becomes two of each plane.
inline void unpack_line(const uint8_t* line, __m512i factors, __m512i offsets, int8_t* low,
                        int8_t* high) {
  const __m512i codes = _mm512_loadu_si512(line);
  const __m512i half = _mm512_set1_epi16(0x0F);
  const __m512i words[4] = {
      _mm512_and_si512(codes, half),                          // inputs 0 and 2
      _mm512_and_si512(_mm512_srli_epi16(codes, 8), half),    // inputs 1 and 3
      _mm512_and_si512(_mm512_srli_epi16(codes, 4), half),    // inputs 4 and 6
      _mm512_srli_epi16(codes, 12),                           // inputs 5 and 7
  };
  const __m512i high_byte = _mm512_set1_epi16(static_cast<int16_t>(0xFF00));
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int quad = 0; quad < 2; ++quad) {
    // W + 128: its upper byte is the high plane, its lower byte the low plane plus 128.
    const __m512i even =
        _mm512_add_epi16(_mm512_mullo_epi16(words[2 * quad], factors), offsets);
    const __m512i odd =
        _mm512_add_epi16(_mm512_mullo_epi16(words[2 * quad + 1], factors), offsets);
    // 0xE4: bits of the second where the mask has none, of the first where it has.
    const __m512i upper =
        _mm512_ternarylogic_epi32(odd, _mm512_srli_epi16(even, 8), high_byte, 0xE4);
    const __m512i lower =
        _mm512_ternarylogic_epi32(_mm512_slli_epi16(odd, 8), even, high_byte, 0xE4);
    _mm512_storeu_si512(high + quad * 64, upper);
    _mm512_storeu_si512(low + quad * 64, _mm512_xor_si512(lower, sign));
  }
}

// W = low + 256 * high of a group, both [8][16][4] as int8 weights are.
inline void unpack_group(const uint8_t* group, int8_t* low, int8_t* high) {
  const __m512i both = _mm512_loadu_si512(group + kCodeLines * 64);
  const __m512i factor = _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF));
  const __m512i factors = _mm512_or_si512(factor, _mm512_slli_epi32(factor, 16));
  const __m512i middle = _mm512_srli_epi32(both, 16);
  const __m512i middles = _mm512_or_si512(middle, _mm512_slli_epi32(middle, 16));
  // What code 0 stands for, plus 128.
  const __m512i below =
      _mm512_sub_epi16(_mm512_mullo_epi16(factors, _mm512_set1_epi16(kMiddleCode)), _mm512_set1_epi16(128));
  const __m512i offsets = _mm512_sub_epi16(middles, below);
  for (int line = 0; line < kCodeLines; ++line) {
    unpack_line(group + line * 64, factors, offsets, low + line * 128, high + line * 128);
  }
}

#else

// W = low + 256 * high of a group, both [8][16][4] as int8 weights are.
inline void unpack_group(const uint8_t* group, int8_t* low, int8_t* high) {
  int16_t both[2 * 16];
  std::memcpy(both, group + kCodeLines * 64, sizeof both);
  for (int i = 0; i < kCodeLines * 64; ++i) {
    const int column = i / 4 % 16;
    const int factor = both[2 * column], middle = both[2 * column + 1];
    const int to = i / 64 * 128 + i % 64;
    const int codes[2] = {group[i] & 15, group[i] >> 4};
    for (int quad = 0; quad < 2; ++quad) {
      const int weight = factor * (codes[quad] - kMiddleCode) + middle;
      assert(weight <= kMaxInt4Weight && weight >= -kMaxInt4Weight && "a weight and 128 have 16 bits");
      high[to + quad * 64] = static_cast<int8_t>((weight + 128) >> 8);
      low[to + quad * 64] = static_cast<int8_t>(((weight + 128) & 255) - 128);
    }
  }
}

#endif

}  // namespace detail

}  // namespace slipstream
