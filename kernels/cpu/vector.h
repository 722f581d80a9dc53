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

inline void prefetch(const void* p) { __builtin_prefetch(p); }
// Into the second level: what is needed later than a few microseconds from now.
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

// A number of 16 bits: the upper half of a float32. It is stored so, and computed as a float32.
struct Bf16 {
  uint16_t bits;
};

// The nearest bf16, ties to even; a NaN stays one, and is quiet. Not `vcvtneps2bf16`, which takes
// subnormal numbers for zero.
inline Bf16 round_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t upper = bits >> 16;
  const uint32_t rounded = (bits + 0x7fff + (upper & 1)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? upper | 0x40 : rounded)};
}

inline float widened(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline float widened(float x) { return x; }

#if defined(__AVX512F__)

struct F16 {
  __m512 v;
  static F16 zero() { return {_mm512_setzero_ps()}; }
  static F16 set(float x) { return {_mm512_set1_ps(x)}; }
  static F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F16 load(const Bf16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  // Lanes at or beyond `count` read as zero and touch no memory.
  static F16 load_first(const float* p, int count) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p)};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(Bf16* p) const;
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
template <int kBits>
inline I16 shift_left(I16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline I16 shift_right(I16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
inline F16 round_to_whole(F16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
inline I16 as_bits(F16 a) { return {_mm512_castps_si512(a.v)}; }
inline F16 from_bits(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
// a * 2^n for whole n with a normal result.
inline F16 scale_by_power(F16 a, F16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// The low byte of each lane.
// Byte `place` of each group of four bytes at p gets the low byte of a lane.
inline void store_interleaved(I16 a, int place, int8_t* p) {
  const __m512i shifted = _mm512_sll_epi32(a.v, _mm_cvtsi32_si128(8 * place));
  _mm512_mask_storeu_epi8(p, 0x1111111111111111ull << place, shifted);
}
inline void store_bytes(I16 a, int8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
inline I16 load_bytes(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// x[columns[i]], 16 columns.
inline F16 gather(const float* x, const int32_t* columns) {
  return {_mm512_i32gather_ps(_mm512_loadu_si512(columns), x, 4)};
}
// Bit i is set where lane i of a is above b's; a NaN is above nothing.
inline uint32_t lanes_above(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
// Bit i is set where lane i of a or of b is a NaN.
inline uint32_t lanes_nan(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }
// The larger of a magnitude and that of x. Compared are bits, among which a NaN is the largest: `max`
// would lose it.
inline F16 max_magnitude(F16 magnitude, F16 x) {
  const __m512i bits = _mm512_castps_si512(_mm512_abs_ps(x.v));
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(magnitude.v), bits))};
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
  static F16 load(const Bf16* p) { return {load_half(p), load_half(p + 8)}; }
  static __m256 load_half(const Bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
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
  static F16 load(const Bf16* p) {
    F16 r;
    for (int i = 0; i < kLanes; ++i) r.x[i] = widened(p[i]);
    return r;
  }
  void store(float* p) const { std::memcpy(p, x, sizeof x); }
#endif
  void store(Bf16* p) const;
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
inline F16 round_to_whole(F16 a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}
inline __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F16 scale_by_power(F16 a, F16 n) {
  return {_mm256_mul_ps(a.lo, power_of_two(n.lo)), _mm256_mul_ps(a.hi, power_of_two(n.hi))};
}
inline __m256 max_magnitude(__m256 magnitude, __m256 x) {
  return _mm256_castsi256_ps(
      _mm256_max_epi32(_mm256_castps_si256(magnitude), _mm256_castps_si256(x)));
}
inline F16 max_magnitude(F16 magnitude, F16 x) {
  x = abs(x);
  return {max_magnitude(magnitude.lo, x.lo), max_magnitude(magnitude.hi, x.hi)};
}
template <int kComparison>
inline uint32_t compared_lanes(F16 a, F16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, kComparison));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, kComparison));
  return static_cast<uint32_t>(lo | hi << 8);
}
inline uint32_t lanes_above(F16 a, F16 b) { return compared_lanes<_CMP_GT_OQ>(a, b); }
inline uint32_t lanes_nan(F16 a, F16 b) { return compared_lanes<_CMP_UNORD_Q>(a, b); }
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
inline F16 round_to_whole(F16 a) {
  for (float& x : a.x) x = std::nearbyint(x);
  return a;
}
inline F16 scale_by_power(F16 a, F16 n) {
  for (int i = 0; i < kLanes; ++i) {
    if (n.x[i] != n.x[i]) continue;  // a NaN has no int32
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.x[i]) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    a.x[i] *= power;
  }
  return a;
}
inline F16 max_magnitude(F16 magnitude, F16 x) {
  for (int i = 0; i < kLanes; ++i) {
    int32_t found, bits;
    std::memcpy(&found, &magnitude.x[i], sizeof found);
    std::memcpy(&bits, &x.x[i], sizeof bits);
    bits = found > (bits & INT32_MAX) ? found : bits & INT32_MAX;
    std::memcpy(&magnitude.x[i], &bits, sizeof bits);
  }
  return magnitude;
}
#define SLIPSTREAM_COMPARED(name, expression)                                   \
  inline uint32_t name(F16 a, F16 b) {                                          \
    int32_t is_any = 0;                                                         \
    for (int i = 0; i < kLanes; ++i) is_any |= (expression);                    \
    uint32_t bits = 0;                                                          \
    if (is_any == 0) return bits;                                               \
    for (int i = 0; i < kLanes; ++i) {                                          \
      bits |= static_cast<uint32_t>(expression) << i;                           \
    }                                                                           \
    return bits;                                                                \
  }
SLIPSTREAM_COMPARED(lanes_above, a.x[i] > b.x[i])
SLIPSTREAM_COMPARED(lanes_nan, (a.x[i] != a.x[i]) | (b.x[i] != b.x[i]))
#undef SLIPSTREAM_COMPARED
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
inline void store_interleaved(I16 a, int place, int8_t* p) {
  for (int i = 0; i < kLanes; ++i) p[4 * i + place] = static_cast<int8_t>(a.x[i]);
}
inline I16 load_bytes(const int8_t* p) {
  I16 r;
  for (int i = 0; i < kLanes; ++i) r.x[i] = p[i];
  return r;
}
inline F16 gather(const float* x, const int32_t* columns) {
  float r[kLanes];
  for (int i = 0; i < kLanes; ++i) r[i] = x[columns[i]];
  return F16::load(r);
}
inline F16 select_first(int count, F16 a, F16 b) {
  float x[kLanes], y[kLanes];
  a.store(x);
  b.store(y);
  for (int i = 0; i < kLanes; ++i) x[i] = i < count ? x[i] : y[i];
  return F16::load(x);
}

#endif

// Stored are keys and values, a few vectors a row: the compiler's own code will do.
inline void F16::store(Bf16* p) const {
  float x[kLanes];
  store(x);
  for (int i = 0; i < kLanes; ++i) p[i] = round_to_bf16(x[i]);
}

#if !defined(__AVX512F__)
inline I16 as_bits(F16 a) {
  I16 r;
  a.store(reinterpret_cast<float*>(r.x));
  return r;
}
inline F16 from_bits(I16 a) { return F16::load(reinterpret_cast<const float*>(a.x)); }
#endif

}  // namespace slipstream
