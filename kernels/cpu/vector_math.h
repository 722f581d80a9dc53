// Reductions over lanes, and functions of them, in one order of operations at every ISA level.
#pragma once

#include <cstdint>
#include <cstring>

#include "vector.h"

namespace slipstream {

// Sum and maximum over the lanes, as a fixed tree: 16 -> 8 -> 4 -> 2 -> 1.
#if defined(__AVX512F__)
inline float reduce_add(F16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float reduce_max(F16 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#else
inline float reduce_add(F16 a) {
  float x[kLanes];
  a.store(x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  }
  return x[0];
}
inline float reduce_max(F16 a) {
  float x[kLanes];
  a.store(x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  }
  return x[0];
}
#endif

// The largest magnitude; NaN if one is.
inline float reduce_magnitude(F16 magnitudes) {
#if defined(__AVX512F__)
  const int32_t bits = _mm512_reduce_max_epi32(_mm512_castps_si512(magnitudes.v));
#else
  int32_t lanes[kLanes];
  std::memcpy(lanes, &magnitudes, sizeof lanes);
  int32_t bits = lanes[0];
  for (const int32_t lane : lanes) bits = bits > lane ? bits : lane;
#endif
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  return largest;
}

// The functions below take several vectors at once and go through them step by step: one vector's
// chain of dependent operations leaves most of the machine idle, and the processor does not look far
// enough ahead to find the next one by itself.
#define SLIPSTREAM_EACH(i) _Pragma("GCC unroll 8") for (int i = 0; i < kCount; ++i)

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kExp2[7] = {0.00015345811f, 0.00133999309f, 0.00961848907f, 0.0555032864f, 0.240226462f, 0.693147182f, 1.0f};

// x = 2^x for x from -126 (below it: 2^-126) to 127: 2^n * p(r) with r in [-1/2, 1/2], p the
// polynomial of degree 6 that approximates 2^r best (relative error below 1e-7).
template <int kCount>
inline void exp2(F16 (&x)[kCount]) {
  F16 n[kCount], p[kCount];
  // The variable stands second: max returns it when it is NaN, so that a NaN stays one.
  SLIPSTREAM_EACH(i) x[i] = max(F16::set(-126.0f), x[i]);
  SLIPSTREAM_EACH(i) n[i] = round_to_whole(x[i]);
  SLIPSTREAM_EACH(i) x[i] = x[i] - n[i];
  SLIPSTREAM_EACH(i) p[i] = fma(F16::set(kExp2[0]), x[i], F16::set(kExp2[1]));
#pragma GCC unroll 5
  for (int k = 2; k < 7; ++k) {
    SLIPSTREAM_EACH(i) p[i] = fma(p[i], x[i], F16::set(kExp2[k]));
  }
  SLIPSTREAM_EACH(i) x[i] = scale_by_power(p[i], n[i]);
}

inline F16 exp2(F16 x) {
  F16 one[1] = {x};
  exp2(one);
  return one[0];
}

// x = x * sigmoid(x). The reciprocal of 1 + e^-x is a first guess from the exponent's bits, then
// Newton's iteration: a division takes four times as long, and hardware guesses differ between
// machines.
template <int kCount>
inline void silu(F16 (&x)[kCount]) {
  F16 a[kCount], r[kCount];
  // The variable stands second, so that a NaN stays one.
  SLIPSTREAM_EACH(i) a[i] = min(F16::set(115.0f), x[i] * F16::set(-kLog2E));
  exp2(a);
  SLIPSTREAM_EACH(i) a[i] = a[i] + F16::set(1.0f);
  SLIPSTREAM_EACH(i) r[i] = from_bits(I16::set(0x7ef311c7) - as_bits(a[i]));
#pragma GCC unroll 3
  for (int iteration = 0; iteration < 3; ++iteration) {
    F16 error[kCount];
    SLIPSTREAM_EACH(i) error[i] = fma(F16::zero() - a[i], r[i], F16::set(2.0f));
    SLIPSTREAM_EACH(i) r[i] = r[i] * error[i];
  }
  SLIPSTREAM_EACH(i) x[i] = x[i] * r[i];
}

#undef SLIPSTREAM_EACH

}  // namespace slipstream
