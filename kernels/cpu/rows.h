// Operations on one row of activations: norm, rotation, quantization. Rows never see each other.
#pragma once

#include "dot_i8.h"
#include "model.h"
#include "vector.h"

namespace slipstream {

// y = x / sqrt(mean(x^2) + epsilon) * weight
inline void rms_norm(const float* x, const float* weight, int n, float epsilon, float* y) {
  F16 sums = F16::zero();
  for (int i = 0; i < n; i += kLanes) {
    const F16 v = F16::load(x + i);
    sums = fma(v, v, sums);
  }
  const float mean = reduce_add(sums) / static_cast<float>(n);
  const F16 scale = F16::set(1.0f / std::sqrt(mean + epsilon));
  for (int i = 0; i < n; i += kLanes) {
    (F16::load(x + i) * scale * F16::load(weight + i)).store(y + i);
  }
}

// Rotary embedding of one head, halves paired as in the Llama family: (x1, x2) at (i, i + dim / 2).
inline void rotate(float* x, int dim, const float* cosines, const float* sines) {
  const int half = dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const F16 c = F16::load(cosines + i), s = F16::load(sines + i);
    const F16 a = F16::load(x + i), b = F16::load(x + half + i);
    (a * c - b * s).store(x + i);
    (b * c + a * s).store(x + half + i);
  }
}

#if defined(__AVX512F__)
inline F16 hadamard_lanes(F16 a) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const auto stage = [&](__m512 x, __m512 swapped, __mmask16 upper) {
    // swapped + x in the lower lane of a pair, swapped - x in the upper one.
    return _mm512_fmadd_ps(x, _mm512_mask_sub_ps(one, upper, _mm512_setzero_ps(), one), swapped);
  };
  __m512 x = a.v;
  x = stage(x, _mm512_shuffle_f32x4(x, x, 0x4E), 0xFF00);
  x = stage(x, _mm512_shuffle_f32x4(x, x, 0xB1), 0xF0F0);
  x = stage(x, _mm512_permute_ps(x, 0x4E), 0xCCCC);
  x = stage(x, _mm512_permute_ps(x, 0xB1), 0xAAAA);
  return {x};
}
#else
inline F16 hadamard_lanes(F16 a) {
  float x[kLanes];
  a.store(x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < kLanes; ++i) {
      if ((i & half) != 0) continue;
      const float lower = x[i], upper = x[i + half];
      x[i] = lower + upper;
      x[i + half] = lower - upper;
    }
  }
  return F16::load(x);
}
#endif

// Orthonormal Walsh-Hadamard transform in blocks of `block` (a power of two, at least 16).
inline void hadamard(float* x, int n, int block) {
  const F16 scale = F16::set(1.0f / std::sqrt(static_cast<float>(block)));
  for (int first = 0; first < n; first += block) {
    float* b = x + first;
    for (int half = block / 2; half >= kLanes; half /= 2) {
      for (int i = 0; i < block; i += 2 * half) {
        for (int j = i; j < i + half; j += kLanes) {
          const F16 lower = F16::load(b + j), upper = F16::load(b + j + half);
          (lower + upper).store(b + j);
          (lower - upper).store(b + j + half);
        }
      }
    }
    for (int i = 0; i < block; i += kLanes) (hadamard_lanes(F16::load(b + i)) * scale).store(b + i);
  }
}

inline float max_abs(const float* x, int n) {
  F16 found = F16::zero();
  for (int i = 0; i < n; i += kLanes) found = max(found, abs(F16::load(x + i)));
  return reduce_max(found);
}

inline I16 quantized(const float* x, F16 inverse, int limit) {
  // Clamped as floats: what is out of range for an int32 has no defined conversion.
  const F16 bound = F16::set(static_cast<float>(limit));
  return round_to_int(min(max(F16::load(x) * inverse, F16::zero() - bound), bound));
}

// low + 256 * high = x, both in [-128, 127]
inline void split_planes(I16 x, int8_t* low, int8_t* high) {
  const I16 bottom = shift_right<24>(shift_left<24>(x));
  store_bytes(bottom, low);
  store_bytes(shift_right<8>(x - bottom), high);
}

// 8 bits and one scale for the row; the outliers at its front get 16 bits under the same scale.
// A row with a NaN gets a NaN scale, and so NaN results: it stays visible, and alone.
inline void quantize_row(const float* x, int k, int num_outliers, int8_t* low, int8_t* high,
                         float* scale) {
  float largest = max_abs(x + num_outliers, k - num_outliers) / 127.0f;
  if (num_outliers != 0) {
    const float strongest = max_abs(x, num_outliers) / 32512.0f;
    if (!(largest >= strongest)) largest = strongest;
  }
  *scale = largest;
  const F16 inverse = F16::set(largest > 0.0f ? 1.0f / largest : 0.0f);
  for (int i = 0; i < num_outliers; i += kLanes) {
    split_planes(quantized(x + i, inverse, 32512), low + i, high + i);
  }
  for (int i = num_outliers; i < k; i += kLanes) {
    store_bytes(quantized(x + i, inverse, 127), low + i);
  }
}

// Put the strongest input columns first.
inline void reorder(const float* x, const int32_t* columns, int k, float* y) {
  for (int i = 0; i < k; ++i) y[i] = x[columns[i]];
}

}  // namespace slipstream
