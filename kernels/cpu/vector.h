// The thin vector layer: 16 float lanes and 16 int32 lanes at every ISA level.
//
// Reductions in this library have a virtual width of 16 lanes, use fused multiply-add throughout and
// our own exponential, so that a level with narrower registers computes the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace slipstream {

constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct F16 {
  __m512 v;
  static F16 zero() { return {_mm512_setzero_ps()}; }
  static F16 set(float x) { return {_mm512_set1_ps(x)}; }
  static F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  // Lanes at or beyond `count` read as zero and touch no memory.
  static F16 load_first(const float* p, int count) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p)};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_first(float* p, int count) const {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), v);
  }
};
struct I16 {
  __m512i v;
  static I16 zero() { return {_mm512_setzero_si512()}; }
  static I16 set(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static I16 load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
  void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
};
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
inline I16 round_to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I16 operator*(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
template <int kBits>
inline I16 shift_left(I16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline I16 shift_right(I16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
inline I16 max(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline I16 min(I16 a, I16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
inline F16 bits_to_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
// The low byte of each lane.
inline void store_bytes(I16 a, int8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
inline I16 load_bytes(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Lanes where index < count keep a, the others take b.
inline F16 select_first(int count, F16 a, F16 b) {
  const int clamped = count < 0 ? 0 : count > kLanes ? kLanes : count;
  return {_mm512_mask_blend_ps(static_cast<__mmask16>((1u << clamped) - 1), b.v, a.v)};
}

#else

// Two halves of eight lanes with AVX2, else plain arrays that the compiler lowers to what there is.
struct F16 {
#if defined(__AVX2__)
  __m256 lo, hi;
  static F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
#else
  float x[kLanes];
  static F16 zero() { return set(0.0f); }
  static F16 set(float value) {
    F16 r;
    for (int i = 0; i < kLanes; ++i) r.x[i] = value;
    return r;
  }
  static F16 load(const float* p) {
    F16 r;
    std::memcpy(r.x, p, sizeof r.x);
    return r;
  }
  void store(float* p) const { std::memcpy(p, x, sizeof x); }
#endif
  static F16 load_first(const float* p, int count) {
    float padded[kLanes] = {};
    for (int i = 0; i < count; ++i) padded[i] = p[i];
    return load(padded);
  }
  void store_first(float* p, int count) const {
    float all[kLanes];
    store(all);
    for (int i = 0; i < count; ++i) p[i] = all[i];
  }
};
struct I16 {
  int32_t x[kLanes];
  static I16 zero() { return set(0); }
  static I16 set(int32_t value) {
    I16 r;
    for (int i = 0; i < kLanes; ++i) r.x[i] = value;
    return r;
  }
  static I16 load(const int32_t* p) {
    I16 r;
    std::memcpy(r.x, p, sizeof r.x);
    return r;
  }
  void store(int32_t* p) const { std::memcpy(p, x, sizeof x); }
};

#if defined(__AVX2__)
inline F16 operator+(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F16 abs(F16 a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
inline I16 round_to_int(F16 a) {
  I16 r;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(r.x), _mm256_cvtps_epi32(a.lo));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(r.x + 8), _mm256_cvtps_epi32(a.hi));
  return r;
}
inline F16 to_float(I16 a) {
  const auto* p = reinterpret_cast<const __m256i*>(a.x);
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(p)), _mm256_cvtepi32_ps(_mm256_loadu_si256(p + 1))};
}
inline F16 bits_to_float(I16 a) { return F16::load(reinterpret_cast<const float*>(a.x)); }
#else
#define SLIPSTREAM_LANEWISE(type, name, expression)    \
  inline type name(type a, type b) {                   \
    type r;                                            \
    for (int i = 0; i < kLanes; ++i) r.x[i] = (expression); \
    return r;                                          \
  }
SLIPSTREAM_LANEWISE(F16, operator+, a.x[i] + b.x[i])
SLIPSTREAM_LANEWISE(F16, operator-, a.x[i] - b.x[i])
SLIPSTREAM_LANEWISE(F16, operator*, a.x[i] * b.x[i])
SLIPSTREAM_LANEWISE(F16, operator/, a.x[i] / b.x[i])
// As vmaxps and vminps: the second operand where the comparison is false.
SLIPSTREAM_LANEWISE(F16, max, a.x[i] > b.x[i] ? a.x[i] : b.x[i])
SLIPSTREAM_LANEWISE(F16, min, a.x[i] < b.x[i] ? a.x[i] : b.x[i])
inline F16 fma(F16 a, F16 b, F16 c) {
  F16 r;
  for (int i = 0; i < kLanes; ++i) r.x[i] = std::fma(a.x[i], b.x[i], c.x[i]);
  return r;
}
inline F16 abs(F16 a) {
  for (float& x : a.x) x = std::fabs(x);
  return a;
}
inline I16 round_to_int(F16 a) {
  I16 r;
  for (int i = 0; i < kLanes; ++i) {
    // What has no int32 becomes the smallest, as vcvtps2dq makes it.
    const bool is_in_range = a.x[i] >= -2147483648.0f && a.x[i] < 2147483648.0f;
    r.x[i] = is_in_range ? static_cast<int32_t>(std::nearbyint(a.x[i])) : INT32_MIN;
  }
  return r;
}
inline F16 to_float(I16 a) {
  F16 r;
  for (int i = 0; i < kLanes; ++i) r.x[i] = static_cast<float>(a.x[i]);
  return r;
}
inline F16 bits_to_float(I16 a) {
  F16 r;
  std::memcpy(r.x, a.x, sizeof r.x);
  return r;
}
#undef SLIPSTREAM_LANEWISE
#endif

#define SLIPSTREAM_INT_LANEWISE(name, expression)      \
  inline I16 name(I16 a, I16 b) {                      \
    I16 r;                                             \
    for (int i = 0; i < kLanes; ++i) r.x[i] = (expression); \
    return r;                                          \
  }
SLIPSTREAM_INT_LANEWISE(operator+, a.x[i] + b.x[i])
SLIPSTREAM_INT_LANEWISE(operator-, a.x[i] - b.x[i])
SLIPSTREAM_INT_LANEWISE(operator*, a.x[i] * b.x[i])
SLIPSTREAM_INT_LANEWISE(max, a.x[i] > b.x[i] ? a.x[i] : b.x[i])
SLIPSTREAM_INT_LANEWISE(min, a.x[i] < b.x[i] ? a.x[i] : b.x[i])
#undef SLIPSTREAM_INT_LANEWISE
template <int kBits>
inline I16 shift_left(I16 a) {
  for (int32_t& x : a.x) x = static_cast<int32_t>(static_cast<uint32_t>(x) << kBits);
  return a;
}
template <int kBits>
inline I16 shift_right(I16 a) {
  for (int32_t& x : a.x) x >>= kBits;
  return a;
}
inline void store_bytes(I16 a, int8_t* p) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.x[i]);
}
inline I16 load_bytes(const int8_t* p) {
  I16 r;
  for (int i = 0; i < kLanes; ++i) r.x[i] = p[i];
  return r;
}
inline F16 select_first(int count, F16 a, F16 b) {
  float x[kLanes], y[kLanes];
  a.store(x);
  b.store(y);
  for (int i = 0; i < kLanes; ++i) x[i] = i < count ? x[i] : y[i];
  return F16::load(x);
}

#endif

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

// e^x for x <= 88, 0 below -87: 2^n * p(r) with r in [-ln2/2, ln2/2] (Cephes' expf polynomial).
inline F16 exp(F16 x) {
  // The variable stands second: max and min return it when it is NaN, so that a NaN stays one.
  const F16 clamped = min(F16::set(88.0f), max(F16::set(-87.0f), x));
  const I16 n = round_to_int(clamped * F16::set(1.44269504088896341f));
  const F16 nf = to_float(n);
  F16 r = fma(nf, F16::set(-0.693359375f), clamped);
  r = fma(nf, F16::set(2.12194440e-4f), r);
  F16 p = F16::set(1.9875691500e-4f);
  p = fma(p, r, F16::set(1.3981999507e-3f));
  p = fma(p, r, F16::set(8.3334519073e-3f));
  p = fma(p, r, F16::set(4.1665795894e-2f));
  p = fma(p, r, F16::set(1.6666665459e-1f));
  p = fma(p, r, F16::set(5.0000001201e-1f));
  p = fma(p, r * r, r + F16::set(1.0f));
  const F16 scaled = p * bits_to_float(shift_left<23>(n + I16::set(127)));
  // Lanes that were clamped at the low end are zero: a masked score has no weight at all.
  return scaled * to_float(min(max(round_to_int(max(F16::set(-1e6f), x)) + I16::set(88), I16::zero()),
                               I16::set(1)));
}

// x * sigmoid(x)
inline F16 silu(F16 x) { return x / (F16::set(1.0f) + exp(F16::zero() - x)); }

}  // namespace slipstream
