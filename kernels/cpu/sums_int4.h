// What the sums of int4 products become, however they were summed: numbers, on their way to an epilogue.
#pragma once

#include "linear.h"
#include "unpack_i4.h"

namespace slipstream::detail {

// The exact sums of one row and a pair become numbers: the same expression on every path.
struct Int4Scaling {
  const Linear& linear;
  F16 scales[2];

  Int4Scaling(const Linear& of, int pair) : linear(of) {
    for (int tile = 0; tile < 2; ++tile) scales[tile] = F16::load(of.scales + pair * kPair + tile * 16);
  }
  F16 operator()(I16 low, I16 high, int tile, float row_scale) const {
    F16 sum = to_float(low);
    if (linear.num_outliers != 0) sum = fma(to_float(high), F16::set(256.0f), sum);
    return sum * (scales[tile] * F16::set(row_scale));
  }
};

// Which group of four inputs stands at place `i` of the high plane.
inline int outlier_quad(const Linear& linear, int i) {
  return linear.outliers != nullptr ? linear.outliers[i] : i;
}

// The sums of up to 32 rows and a pair, [plane of the weights][row][32].
using PlaneSums = int32_t[2][kPairRows * kPair];

// Rows [first, first + count) of a pair on their way to the epilogue: value(row - first, tile).
template <typename Epilogue, typename Value>
inline void finish_rows(int first_row, int num_rows, int pair, const Epilogue& epilogue, const Value& value) {
  const auto finish = [&](auto& a, auto& b, int row) {
    for (int r = 0; r < count_of(a); ++r) {
      a[r] = value(row + r, 0);
      b[r] = value(row + r, 1);
    }
    epilogue(first_row + row, pair, a, b);
  };
  int row = 0;
  for (; row + 4 <= num_rows; row += 4) {
    F16 a[4], b[4];
    finish(a, b, row);
  }
  for (; row < num_rows; ++row) {
    F16 a[1], b[1];
    finish(a, b, row);
  }
}

// The same of sums over both planes of the weights. Sums over high inputs are absent without outliers.
template <typename Epilogue>
inline void finish_planes(const Linear& linear, const QuantizedRows& x, int pair, int first_row,
                          int num_rows, const PlaneSums& low, const PlaneSums& high,
                          const Epilogue& epilogue) {
  const Int4Scaling scaling(linear, pair);
  const auto whole = [](const PlaneSums& sums, int at) {
    return I16::load(sums[0] + at) + shift_left<8>(I16::load(sums[1] + at));
  };
  finish_rows(first_row, num_rows, pair, epilogue, [&](int row, int tile) {
    const int at = row * kPair + tile * 16;
    const I16 high_sum = linear.num_outliers != 0 ? whole(high, at) : I16::zero();
    return scaling(whole(low, at), high_sum, tile, x.scales[first_row + row]);
  });
}

}  // namespace slipstream::detail
