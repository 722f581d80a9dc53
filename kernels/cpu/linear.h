// y = x W^T for the rows of a batch, in pairs of column tiles; the caller's epilogue takes each row.
//
// Rows don't see each other: an output is one sum over k in a fixed order (float32), or an exact
// integer sum and one scaling (int8), whatever the number of rows or threads.
#pragma once

#include "dot_i8.h"
#include "model.h"
#include "vector.h"

namespace slipstream {

inline void prefetch(const void* p) { __builtin_prefetch(p); }

// Float32: out[row][n] = fma chain over k, ascending.
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
    epilogue(row, pair, a, b);
    others.finish(row + 1, pair, epilogue);
  }
};

template <>
struct RowSums<0> {
  void add(const float*, int64_t, F16, F16) {}
  template <typename Epilogue>
  void finish(int, int, const Epilogue&) const {}
};

template <int kRows, typename Epilogue>
inline void float_rows(const float* weights, int k, const float* x, int ldx, int first_row,
                       int pair, const Epilogue& epilogue) {
  RowSums<kRows> sums;
  const float* w0 = weights;
  const float* w1 = weights + static_cast<int64_t>(k) * 16;
  for (int i = 0; i < k; ++i) {
    if (kRows <= 2) {
      // Few rows are bound by reading weights, many find them in the cache.
      prefetch(w0 + static_cast<int64_t>(i) * 16 + kPrefetchBytes / 4);
      prefetch(w1 + static_cast<int64_t>(i) * 16 + kPrefetchBytes / 4);
    }
    sums.add(x + i, ldx, F16::load(w0 + static_cast<int64_t>(i) * 16),
             F16::load(w1 + static_cast<int64_t>(i) * 16));
  }
  sums.finish(first_row, pair, epilogue);
}

template <typename Epilogue>
inline void linear_float(const Linear& linear, const float* x, int ldx, int num_rows, int first_pair,
                         int end_pair, const Epilogue& epilogue) {
  const auto* weights = static_cast<const float*>(linear.weights);
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const float* w = weights + static_cast<int64_t>(pair) * kPair * linear.k;
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

// Int8: what an exact integer sum becomes. The same expression on every path.
struct IntScaling {
  const Linear& linear;
  int pair;
  F16 scales[2];

  IntScaling(const Linear& of, int at) : linear(of), pair(at) {
    for (int tile = 0; tile < 2; ++tile) {
      scales[tile] = F16::load(linear.scales + pair * kPair + tile * 16);
    }
  }
  F16 operator()(I16 sum, int tile, float row_scale) const {
    return to_float(sum) * (scales[tile] * F16::set(row_scale));
  }
};

namespace detail {

// Give the rows of a finished block of sums to the epilogue.
template <typename Epilogue>
inline void finish_rows(const IntScaling& scaling, const QuantizedRows& x, int first_row,
                        int num_rows, const int32_t* low, const int32_t* high,
                        const Epilogue& epilogue) {
  for (int r = 0; r < num_rows; ++r) {
    I16 sums[2];
    for (int tile = 0; tile < 2; ++tile) {
      sums[tile] = I16::load(low + r * kPair + tile * 16);
      if (high != nullptr) {
        sums[tile] = sums[tile] + shift_left<8>(I16::load(high + r * kPair + tile * 16));
      }
    }
    const float scale = x.scales[first_row + r];
    epilogue(first_row + r, scaling.pair, scaling(sums[0], 0, scale), scaling(sums[1], 1, scale));
  }
}

#if defined(__AVX512VNNI__)

// The 128 that made the inputs unsigned goes out again.
inline void compensate(const int32_t* column_sums, int num_rows, int32_t* sums) {
  for (int tile = 0; tile < 2; ++tile) {
    const I16 excess = shift_left<7>(I16::load(column_sums + tile * 16));
    for (int r = 0; r < num_rows; ++r) {
      int32_t* p = sums + r * kPair + tile * 16;
      (I16::load(p) - excess).store(p);
    }
  }
}

template <int kRows, typename Epilogue>
inline void stream_rows(const Linear& linear, const QuantizedRows& x, int first_pair, int end_pair,
                        const Epilogue& epilogue) {
  alignas(64) int32_t low[kRows * kPair];
  alignas(64) int32_t high[kRows * kPair];
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const int8_t* w = weights + static_cast<int64_t>(pair) * kPair * linear.k;
    pair_streaming<kRows>(w, linear.k, linear.k, x.low, linear.k, low);
    compensate(linear.sums + pair * kPair, kRows, low);
    if (linear.num_outliers != 0) {
      pair_streaming<kRows>(w, linear.k, kNumOutliers, x.high, kNumOutliers, high);
      compensate(linear.outlier_sums + pair * kPair, kRows, high);
    }
    finish_rows(IntScaling(linear, pair), x, 0, kRows, low, linear.num_outliers ? high : nullptr,
                epilogue);
  }
}

#endif

#if defined(__AMX_INT8__)

inline void prefetch_pair(const int8_t* w, int bytes) {
  for (int i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes + i), _MM_HINT_T0);
  }
}

// Up to 16 rows: C in tiles 0 and 1, the outliers' high plane in 2 and 3.
inline void pair_of_16(const Linear& linear, const QuantizedRows& x, int first_row,
                       const int8_t* w, int32_t* low, int32_t* high) {
  const int64_t tile_bytes = static_cast<int64_t>(linear.k) * 16;
  const int8_t* a = x.low + static_cast<int64_t>(first_row) * linear.k;
  _tile_zero(0);
  _tile_zero(1);
  for (int k = 0; k < linear.k; k += kStep) {
    prefetch_pair(w + k * 16, kStep * 16);
    prefetch_pair(w + tile_bytes + k * 16, kStep * 16);
    _tile_loadd(6, w + k * 16, 64);
    _tile_loadd(7, w + tile_bytes + k * 16, 64);
    _tile_loadd(4, a + k, linear.k);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    if (k == 0 && linear.num_outliers != 0) {
      _tile_zero(2);
      _tile_zero(3);
      _tile_loadd(5, x.high + first_row * kNumOutliers, kNumOutliers);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  }
  _tile_stored(0, low, kPair * 4);
  _tile_stored(1, low + 16, kPair * 4);
  if (linear.num_outliers != 0) {
    _tile_stored(2, high, kPair * 4);
    _tile_stored(3, high + 16, kPair * 4);
  }
}

// 32 rows: two A tiles by two B tiles, so that each tile that is loaded is used twice.
inline void pair_of_32(const Linear& linear, const QuantizedRows& x, int first_row,
                       const int8_t* w, int32_t* low, int32_t* high) {
  const int64_t tile_bytes = static_cast<int64_t>(linear.k) * 16;
  const int8_t* a = x.low + static_cast<int64_t>(first_row) * linear.k;
  const int8_t* b = a + static_cast<int64_t>(kTileRows) * linear.k;
  int32_t* rows_b[2] = {low + kTileRows * kPair, high + kTileRows * kPair};
  if (linear.num_outliers != 0) {
    const int8_t* h = x.high + first_row * kNumOutliers;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(6, w, 64);
    _tile_loadd(7, w + tile_bytes, 64);
    _tile_loadd(4, h, kNumOutliers);
    _tile_loadd(5, h + kTileRows * kNumOutliers, kNumOutliers);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(0, high, kPair * 4);
    _tile_stored(1, high + 16, kPair * 4);
    _tile_stored(2, rows_b[1], kPair * 4);
    _tile_stored(3, rows_b[1] + 16, kPair * 4);
  }
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < linear.k; k += kStep) {
    _tile_loadd(6, w + k * 16, 64);
    _tile_loadd(7, w + tile_bytes + k * 16, 64);
    _tile_loadd(4, a + k, linear.k);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, b + k, linear.k);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, low, kPair * 4);
  _tile_stored(1, low + 16, kPair * 4);
  _tile_stored(2, rows_b[0], kPair * 4);
  _tile_stored(3, rows_b[0] + 16, kPair * 4);
}

template <typename Epilogue>
inline void tile_rows(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                      int end_pair, const Epilogue& epilogue) {
  alignas(64) int32_t low[2 * kTileRows * kPair];
  alignas(64) int32_t high[2 * kTileRows * kPair];
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  const int32_t* high_or_none = linear.num_outliers != 0 ? high : nullptr;
  // Rows beyond the last are padding up to a whole tile; their sums are not looked at.
  configure_matrix_tiles(num_rows < kTileRows ? num_rows : kTileRows);
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const int8_t* w = weights + static_cast<int64_t>(pair) * kPair * linear.k;
    const IntScaling scaling(linear, pair);
    int row = 0;
    for (; row + kTileRows < num_rows; row += 2 * kTileRows) {
      pair_of_32(linear, x, row, w, low, high);
      const int count = num_rows - row < 2 * kTileRows ? num_rows - row : 2 * kTileRows;
      finish_rows(scaling, x, row, count, low, high_or_none, epilogue);
    }
    if (row < num_rows) {
      pair_of_16(linear, x, row, w, low, high);
      finish_rows(scaling, x, row, num_rows - row, low, high_or_none, epilogue);
    }
  }
}

#endif

template <typename Epilogue>
inline void plain_rows(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                       int end_pair, const Epilogue& epilogue) {
  alignas(64) int32_t low[kTileRows * kPair];
  alignas(64) int32_t high[kTileRows * kPair];
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const int8_t* w = weights + static_cast<int64_t>(pair) * kPair * linear.k;
    const IntScaling scaling(linear, pair);
    for (int row = 0; row < num_rows; row += kTileRows) {
      const int count = num_rows - row < kTileRows ? num_rows - row : kTileRows;
      pair_plain(w, linear.k, linear.k, x.low + static_cast<int64_t>(row) * linear.k, linear.k,
                 count, low);
      if (linear.num_outliers != 0) {
        pair_plain(w, linear.k, kNumOutliers, x.high + row * kNumOutliers, kNumOutliers, count,
                   high);
      }
      finish_rows(scaling, x, row, count, low, linear.num_outliers != 0 ? high : nullptr, epilogue);
    }
  }
}

}  // namespace detail

template <typename Epilogue>
inline void linear_int8(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                        int end_pair, const Epilogue& epilogue) {
#if defined(__AVX512VNNI__)
  // Up to four rows are computed while the weights stream by; more are worth whole tiles.
  switch (num_rows) {
    case 1:
      return detail::stream_rows<1>(linear, x, first_pair, end_pair, epilogue);
    case 2:
      return detail::stream_rows<2>(linear, x, first_pair, end_pair, epilogue);
    case 3:
      return detail::stream_rows<3>(linear, x, first_pair, end_pair, epilogue);
    case 4:
      return detail::stream_rows<4>(linear, x, first_pair, end_pair, epilogue);
    default:
      break;
  }
#endif
#if defined(__AMX_INT8__)
  detail::tile_rows(linear, x, num_rows, first_pair, end_pair, epilogue);
#else
  detail::plain_rows(linear, x, num_rows, first_pair, end_pair, epilogue);
#endif
}

}  // namespace slipstream
