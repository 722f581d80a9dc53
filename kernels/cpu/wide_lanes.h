// Lanes of 64 bits, and e^x in double, for the sampler's passes.
#pragma once

#include <cstdint>

#include "vector.h"

namespace slipstream {

// Lanes of 64 bits, as many as a register holds, and as many lanes of 32 bits.
#if defined(__AVX512F__)
constexpr int kWideLanes = 8;
#elif defined(__AVX2__)
constexpr int kWideLanes = 4;
#else
constexpr int kWideLanes = 2;
#endif
constexpr int kNumWide = kLanes / kWideLanes;
typedef double Doubles __attribute__((vector_size(8 * kWideLanes)));
typedef uint64_t Words __attribute__((vector_size(8 * kWideLanes)));
typedef float NarrowFloats __attribute__((vector_size(4 * kWideLanes)));
typedef int32_t NarrowInts __attribute__((vector_size(4 * kWideLanes)));

constexpr double kLog2E64 = 1.4426950408889634, kLn2 = 0.69314718055994531;
// The polynomial that approximates e^r best in [-ln 2 / 2, ln 2 / 2] (relative error 2e-16).
constexpr double kExp[11] = {0x1.28a2ca617b969p-22, 0x1.72fafebdaf273p-19, 0x1.a019a6611cad5p-16,
                             0x1.a01978b8b3d18p-13, 0x1.6c16c17f46982p-10, 0x1.1111112ddae8bp-7,
                             0x1.55555555520a4p-5,  0x1.555555554b736p-3,  0x1.0000000000005p-1,
                             0x1.000000000001ep+0,  1.0};
constexpr double kSmallestExponent = -700.0;  // below it e^x would be no normal number
// Added to a number, it leaves the nearest whole one in the low bits.
constexpr double kRounder = 0x1.8p52;

// Fused where the processor does it in one instruction.
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

inline Doubles of_all(double x) { return Doubles{} + x; }

// e^x for x up to 0.
inline Doubles exp(Doubles x) {
  x = x < kSmallestExponent ? of_all(kSmallestExponent) : x;
  const Doubles shifted = multiply_add(x, of_all(kLog2E64), of_all(kRounder));
  const Doubles r = multiply_add(of_all(kRounder) - shifted, of_all(kLn2), x);
  Doubles p = of_all(kExp[0]);
#pragma GCC unroll 10
  for (int i = 1; i < 11; ++i) p = multiply_add(p, r, of_all(kExp[i]));
  return p * (Doubles)(((Words)shifted + 1023) << 52);
}

}  // namespace slipstream
