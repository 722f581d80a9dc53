// Operations on one row of activations: embedding, norm, rotation, quantization. Rows never see each
// other.
#pragma once

#include <cassert>

#include "dot_i8.h"
#include "model.h"
#include "vector.h"
#include "vector_math.h"

namespace slipstream {

// y = x / sqrt(mean(x^2) + epsilon) * weight
inline const float* rms_norm(const float* x, const float* weight, int n, float epsilon, float* y) {
  assert(n % (2 * kLanes) == 0 && "vectors go in pairs");
  // Two sums, of even and odd vectors, so that one need not wait for the other.
  F16 even = F16::zero(), odd = F16::zero();
  for (int i = 0; i < n; i += 2 * kLanes) {
    const F16 a = F16::load(x + i), b = F16::load(x + i + kLanes);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  const float mean = reduce_add(even + odd) / static_cast<float>(n);
  const F16 scale = F16::set(1.0f / std::sqrt(mean + epsilon));
  for (int i = 0; i < n; i += kLanes) {
    (F16::load(x + i) * scale * F16::load(weight + i)).store(y + i);
  }
  return y;
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

// Orthonormal Walsh-Hadamard transform of kVectors vectors that stay in registers.
template <int kVectors>
inline void hadamard(F16 (&x)[kVectors]) {
#pragma GCC unroll 4
  for (int half = kVectors / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      if ((i & half) != 0) continue;
      const F16 lower = x[i], upper = x[i + half];
      x[i] = lower + upper;
      x[i + half] = lower - upper;
    }
  }
  const F16 scale = F16::set(1.0f / std::sqrt(static_cast<float>(kVectors * kLanes)));
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) x[i] = hadamard_lanes(x[i]) * scale;
}

inline float max_abs(const float* x, int n) {
  F16 found = F16::zero();
  for (int i = 0; i < n; i += kLanes) found = max_magnitude(found, F16::load(x + i));
  return reduce_magnitude(found);
}

// No need to clamp: the scale comes from the largest value, and rounding to nearest undoes its error.
inline I16 quantized(F16 x, F16 inverse) { return round_to_int(x * inverse); }

inline F16 inverse_of(float scale) { return F16::set(scale > 0.0f ? 1.0f / scale : 0.0f); }

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
  assert(num_outliers <= k && k % kLanes == 0 && "a row is whole vectors");
  float largest = max_abs(x + num_outliers, k - num_outliers) / 127.0f;
  if (num_outliers != 0) {
    const float strongest = max_abs(x, num_outliers) / 32512.0f;
    if (strongest > largest || strongest != strongest) largest = strongest;
  }
  *scale = largest;
  const F16 inverse = inverse_of(largest);
  for (int i = 0; i < num_outliers; i += kLanes) {
    split_planes(quantized(F16::load(x + i), inverse), low + i, high + i);
  }
  for (int i = num_outliers; i < k; i += kLanes) {
    store_bytes(quantized(F16::load(x + i), inverse), low + i);
  }
}

// The same without outliers, of the row rotated in blocks of kHadamard. `scratch` holds k floats.
inline void rotate_and_quantize_row(const float* x, int k, float* scratch, int8_t* low, float* scale) {
  constexpr int kVectors = kHadamard / kLanes;
  assert(k % kHadamard == 0 && "a row is rotated in whole blocks");
  F16 found = F16::zero();
  for (int first = 0; first < k; first += kHadamard) {
    F16 block[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) block[i] = F16::load(x + first + i * kLanes);
    hadamard(block);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      found = max_magnitude(found, block[i]);
      block[i].store(scratch + first + i * kLanes);
    }
  }
  *scale = reduce_magnitude(found) / 127.0f;
  const F16 inverse = inverse_of(*scale);
  for (int i = 0; i < k; i += kLanes) store_bytes(quantized(F16::load(scratch + i), inverse), low + i);
}

// Put the strongest input columns first.
inline void reorder(const float* x, const int32_t* columns, int k, float* y) {
  for (int i = 0; i < k; i += kLanes) gather(x, columns + i).store(y + i);
}

// The same with the outliers wherever they stand, in fours. `scratch` holds k floats.
inline void quantize_around(const float* x, const Linear& linear, float* scratch, int8_t* low,
                            int8_t* high, float* scale) {
  const int k = linear.k;
  float strong[kNumOutliers];
  std::memcpy(scratch, x, sizeof(float) * static_cast<size_t>(k));
  for (int i = 0; i < kNumOutliers; i += 4) {
    float* quad = scratch + linear.outliers[i / 4] * 4;
    std::memcpy(strong + i, quad, 4 * sizeof(float));
    std::memset(quad, 0, 4 * sizeof(float));
  }
  float largest = max_abs(scratch, k) / 127.0f;
  const float strongest = max_abs(strong, kNumOutliers) / 32512.0f;
  if (strongest > largest || strongest != strongest) largest = strongest;
  *scale = largest;
  const F16 inverse = inverse_of(largest);
  for (int i = 0; i < k; i += kLanes) store_bytes(quantized(F16::load(scratch + i), inverse), low + i);
  int8_t bottoms[kNumOutliers];
  for (int i = 0; i < kNumOutliers; i += kLanes) {
    split_planes(quantized(F16::load(strong + i), inverse), bottoms + i, high + i);
  }
  for (int i = 0; i < kNumOutliers; i += 4) std::memcpy(low + linear.outliers[i / 4] * 4, bottoms + i, 4);
}

// A row as a linear of integers takes it: rotated, or with the strongest columns in front. `scratch`
// holds k floats.
inline void quantize_input(const Linear& linear, const float* x, float* scratch, int8_t* low,
                           int8_t* high, float* scale) {
  if (linear.hadamard != 0) return rotate_and_quantize_row(x, linear.k, scratch, low, scale);
  if (linear.outliers != nullptr) return quantize_around(x, linear, scratch, low, high, scale);
  if (linear.columns != nullptr) {
    reorder(x, linear.columns, linear.k, scratch);
    x = scratch;
  }
  quantize_row(x, linear.k, linear.num_outliers, low, high, scale);
}

// The embedding of a token in float32 or bf16: a row of its own table, or of the output head.
template <typename Weight>
inline void embed_float(const Model& m, int32_t token, float* x) {
  const auto hidden = static_cast<int64_t>(m.hidden);
  const bool is_own = m.embedding != nullptr;
  const auto* w = static_cast<const Weight*>(is_own ? m.embedding : m.head.weights);
  w += is_own ? token * hidden : token / 16 * 16 * hidden + token % 16;
  const int64_t stride = is_own ? 1 : 16;
  for (int k = 0; k < m.hidden; ++k) x[k] = widened(w[k * stride]);
}

// The embedding of a token; where there is none of its own, its row of the output head.
inline void embed(const Model& m, int32_t token, float* x) {
  if (m.head.format == kBf16) return embed_float<Bf16>(m, token, x);
  if (m.head.format == kFloat32 || m.embedding != nullptr) return embed_float<float>(m, token, x);
  const Linear& head = m.head;
  const int64_t tile = static_cast<int64_t>(token / 16) * 16 * head.k;
  const auto* w = static_cast<const int8_t*>(head.weights) + tile;
  for (int k = 0; k < head.k; ++k) {
    const int column = head.columns != nullptr ? head.columns[k] : k;
    x[column] = w[(k / 4 * 16 + token % 16) * 4 + k % 4] * head.scales[token];
  }
}

}  // namespace slipstream
