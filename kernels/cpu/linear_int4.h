// y = x W^T for weights of 4 bits in groups. Codes go into the products as they are read, and the sums of
// a group are scaled in integers. Where there are AMX tiles, many rows take weights unpacked to integers of
// 16 bits, two planes of int8, and without VNNI all rows do. Both are the same exact sum.
//
// The low and the high plane of x have sums of their own; whoever packs the weights sees to it that
// neither leaves 31 bits. y = (low + 256 high) * scale of the column * scale of the row.
#pragma once

#include <algorithm>
#include <cassert>

#include "stream_int4.h"
#include "sums_int4.h"
#include "tiles_int4.h"

namespace slipstream {

// What a thread needs to multiply so many rows: planes of a pair, or sums of the rows' inputs (8 bytes for
// each group and outlier quad, of which there are as many as groups where all inputs are outliers).
inline size_t int4_scratch_bytes(const Linear& linear, int num_rows) {
  const int num_groups = linear.k / kGroup;
  const int num_high = linear.num_outliers == linear.k ? num_groups : linear.num_outliers / 4;
  return static_cast<size_t>(std::max(2 * kPair * linear.k, num_rows * (num_groups + num_high) * 8));
}

namespace detail {

#if !defined(__AVX512VNNI__)

// Both tiles of a pair, as two planes [2][k/4][16][4].
inline void unpack_pair(const Linear& linear, int pair, int8_t* low, int8_t* high) {
  int64_t at = 0;
  for (int tile = 0; tile < 2; ++tile) {
    const uint8_t* groups = tile_i4(linear, 2 * pair + tile);
    for (int group = 0; group < linear.k / kGroup; ++group, at += kGroup * 16) {
      unpack_group(groups + group * kGroupBytes, low + at, high + at);
    }
  }
}

// The rows of a pair's planes that belong to outliers, as [2][num_outliers/4][16][4].
inline void gather_outliers(const Linear& linear, const int8_t* plane, int8_t* to) {
  for (int tile = 0; tile < 2; ++tile) {
    for (int i = 0; i < linear.num_outliers / 4; ++i, to += 64) {
      std::memcpy(to, plane + tile * 16 * linear.k + outlier_quad(linear, i) * 64, 64);
    }
  }
}

template <typename Epilogue>
inline void plain_rows_i4(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                          int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  alignas(64) PlaneSums low, high;
  alignas(64) int8_t outliers[2][kPair * kNumOutliers];
  const int8_t* planes[2] = {scratch, scratch + kPair * linear.k};
  const bool is_all_high = linear.num_outliers == linear.k;
  for (int pair = first_pair; pair < end_pair; ++pair) {
    unpack_pair(linear, pair, scratch, scratch + kPair * linear.k);
    for (int plane = 0; !is_all_high && plane < 2; ++plane) {
      gather_outliers(linear, planes[plane], outliers[plane]);
    }
    for (int row = 0; row < num_rows; row += kPairRows) {
      const int count = num_rows - row < kPairRows ? num_rows - row : kPairRows;
      const auto multiply = [&](const int8_t* a, int k, const int8_t* w, int32_t* sums) {
        pair_plain(w, k, k, a + static_cast<int64_t>(row) * k, k, count, sums);
      };
      for (int plane = 0; plane < 2; ++plane) {
        multiply(x.low, linear.k, planes[plane], low[plane]);
        if (linear.num_outliers == 0) continue;
        multiply(x.high, linear.num_outliers, is_all_high ? planes[plane] : outliers[plane], high[plane]);
      }
      finish_planes(linear, x, pair, row, count, low, high, epilogue);
    }
  }
}

#endif

}  // namespace detail

// `scratch` is the thread's own, `int4_scratch_bytes`, on a cache line.
template <typename Epilogue>
inline void linear_int4(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                        int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  assert(first_pair >= 0 && end_pair * kPair <= linear.n && "pairs are of the matrix");
#if defined(__AMX_INT8__)
  // From so many rows on unpacking costs less than what it saves.
  const int max_num_streamed = linear.num_outliers == linear.k ? 4 : 8;
  if (num_rows > max_num_streamed) {
    return detail::tile_rows_i4(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
  }
#endif
#if defined(__AVX512VNNI__)
  detail::stream_all_i4(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
#else
  detail::plain_rows_i4(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
#endif
}

}  // namespace slipstream
