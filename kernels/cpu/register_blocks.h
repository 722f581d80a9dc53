// Products of bytes in blocks of rows and vectors whose sums stay in registers, at the AVX-512 level.
//
//   C[row][vector] += a quad of each row, broadcast, times four inputs of 16 columns     (int32, exact)
//
// A block of R rows and V vectors loads R + V vectors for R V products. The processors that have these
// instructions start two products and two loads a cycle: so a block this large is bound by its products.
#pragma once

#if defined(__AVX512VNNI__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

// A loop over a block is compiled by itself: for constant sizes GCC spills the sums.
#if defined(__clang__)
#define SLIPSTREAM_APART [[gnu::noinline]]
#else
#define SLIPSTREAM_APART [[gnu::noinline, gnu::noclone]]
#endif

namespace slipstream {

// x + 128 of each byte: what was signed is unsigned, and a product 128 times the other side too large.
inline __m512i made_unsigned(__m512i bytes) {
  return _mm512_xor_si512(bytes, _mm512_set1_epi32(static_cast<int32_t>(0x80808080u)));
}

inline __m512i broadcast_four(const void* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

// Every loop is unrolled: else GCC keeps the sums in memory.
template <int kRows, int kVectors>
struct BlockSums {
  static_assert(kRows <= 12 && kVectors <= 4 && kRows * kVectors <= 24, "registers hold the sums");
  __m512i sums[kRows][kVectors];

  void clear() {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_si512();
    }
  }
  // What the sums of each row begin with. (To take it out at the end makes GCC spill them.)
  void start(const int32_t* of_rows) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_set1_epi32(of_rows[r]);
    }
  }
  // A quad of every row, `ldx` bytes apart, times vectors of unsigned bytes.
  void add_unsigned(const __m512i (&vectors)[kVectors], const int8_t* x, int64_t ldx) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i quad = broadcast_four(x + r * ldx);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], vectors[v], quad);
    }
  }
  // The same of unsigned quads and signed vectors.
  void add_signed(const __m512i (&vectors)[kVectors], const uint8_t* x, int64_t ldx) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i quad = broadcast_four(x + r * ldx);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], quad, vectors[v]);
    }
  }
  // take(row, vector, sum)
  template <typename Take>
  void give(const Take& take) const {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) take(r, v, sums[r][v]);
    }
  }
};

// Minus 128 times the sum of `count` bytes, a multiple of 64: where a sum of products begins that are taken
// with a partner made unsigned.
inline int32_t start_of(const int8_t* x, int count) {
  __m512i sum = _mm512_setzero_si512();
  const __m512i all = _mm512_set1_epi8(static_cast<char>(128));
  for (int i = 0; i < count; i += 64) sum = _mm512_dpbusd_epi32(sum, all, _mm512_loadu_si512(x + i));
  return -_mm512_reduce_add_epi32(sum);
}

template <int kCount>
struct Count {
  static constexpr int value = kCount;
};

namespace detail {

template <int kMost, typename Run>
inline void with_count(int count, const Run& run) {
  if (count == kMost) return run(Count<kMost>());
  if constexpr (kMost > 1) with_count<kMost - 1>(count, run);
}

}  // namespace detail

// Rows in as few blocks of at most kMost as there must be, of nearly the same size: run(first row, Count).
template <int kMost, typename Run>
inline void each_block(int num_rows, const Run& run) {
  const int num_blocks = (num_rows + kMost - 1) / kMost;
  for (int block = 0; block < num_blocks; ++block) {
    const int first = static_cast<int>(static_cast<int64_t>(num_rows) * block / num_blocks);
    const int end = static_cast<int>(static_cast<int64_t>(num_rows) * (block + 1) / num_blocks);
    detail::with_count<kMost>(end - first, [&](auto count) { run(first, count); });
  }
}

}  // namespace slipstream

#endif
