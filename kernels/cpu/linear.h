// y = x W^T for the rows of a batch, in pairs of column tiles. The caller's epilogue takes a few rows
// at a time: `epilogue(row, pair, a, b)` with the two tiles' vectors of rows row, row + 1, ...
//
// Rows don't see each other: an output is one sum over k in a fixed order (float32 and bf16, here), or an
// exact integer sum and one scaling (int8 and int4), whatever the number of rows or threads.
#pragma once

#include <cassert>

#include "dot_i8.h"
#include "model.h"
#include "vector.h"

namespace slipstream {

// How many rows an epilogue got.
template <int kCount>
constexpr int count_of(const F16 (&)[kCount]) {
  return kCount;
}

// The outputs of a pair, as far as there are any left.
inline void store_pair(float* y, int num_left, F16 a, F16 b) {
  if (num_left >= kPair) {
    a.store(y);
    b.store(y + 16);
    return;
  }
  a.store_first(y, num_left < 16 ? num_left : 16);
  if (num_left > 16) b.store_first(y + 16, num_left - 16);
}

// Weights in float32 or bf16, which are computed as float32: out[row][n] = fma chain over k, ascending.
// The sums of some rows. Members instead of an array: GCC keeps these in registers.
template <int kRows>
struct RowSums {
  F16 a = F16::zero(), b = F16::zero();
  RowSums<kRows - 1> others;

  void add(const float* x, int64_t ldx, F16 wa, F16 wb) {
    const F16 value = F16::set(*x);
    a = fma(value, wa, a);
    b = fma(value, wb, b);
    others.add(x + ldx, ldx, wa, wb);
  }
  template <typename Epilogue>
  void finish(int row, int pair, const Epilogue& epilogue) const {
    F16 one_a[1] = {a}, one_b[1] = {b};
    epilogue(row, pair, one_a, one_b);
    others.finish(row + 1, pair, epilogue);
  }
};

template <>
struct RowSums<0> {
  void add(const float*, int64_t, F16, F16) {}
  template <typename Epilogue>
  void finish(int, int, const Epilogue&) const {}
};

template <int kRows, typename Weight, typename Epilogue>
inline void float_rows(const Weight* weights, int k, const float* x, int ldx, int first_row,
                       int pair, const Epilogue& epilogue) {
  constexpr int kPrefetch = kPrefetchBytes / static_cast<int>(sizeof(Weight));
  RowSums<kRows> sums;
  const Weight* w0 = weights;
  const Weight* w1 = weights + static_cast<int64_t>(k) * 16;
  for (int i = 0; i < k; ++i) {
    if (kRows <= 2) {
      // Few rows are bound by reading weights, many find them in the cache.
      prefetch(w0 + static_cast<int64_t>(i) * 16 + kPrefetch);
      prefetch(w1 + static_cast<int64_t>(i) * 16 + kPrefetch);
    }
    sums.add(x + i, ldx, F16::load(w0 + static_cast<int64_t>(i) * 16),
             F16::load(w1 + static_cast<int64_t>(i) * 16));
  }
  sums.finish(first_row, pair, epilogue);
}

template <typename Weight, typename Epilogue>
inline void linear_float(const Linear& linear, const float* x, int num_rows, int first_pair,
                         int end_pair, const Epilogue& epilogue) {
  assert(first_pair >= 0 && end_pair * kPair <= linear.n && "pairs are of the matrix");
  const auto* weights = static_cast<const Weight*>(linear.weights);
  const int ldx = linear.k;
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const Weight* w = weights + static_cast<int64_t>(pair) * kPair * linear.k;
    int row = 0;
    for (; row + 12 <= num_rows; row += 12) {
      float_rows<12>(w, linear.k, x + static_cast<int64_t>(row) * ldx, ldx, row, pair, epilogue);
    }
    for (; row + 4 <= num_rows; row += 4) {
      float_rows<4>(w, linear.k, x + static_cast<int64_t>(row) * ldx, ldx, row, pair, epilogue);
    }
    for (; row + 2 <= num_rows; row += 2) {
      float_rows<2>(w, linear.k, x + static_cast<int64_t>(row) * ldx, ldx, row, pair, epilogue);
    }
    for (; row < num_rows; ++row) {
      float_rows<1>(w, linear.k, x + static_cast<int64_t>(row) * ldx, ldx, row, pair, epilogue);
    }
  }
}

}  // namespace slipstream
