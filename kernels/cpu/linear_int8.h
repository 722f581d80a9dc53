// y = x W^T for weights of 8 bits: exact sums in int32, whichever way they are summed, and one scaling.
//
//   few rows: weights stream by; many: AMX tiles, else blocks of rows whose sums stay in registers
#pragma once

#include <cassert>

#include "linear.h"
#include "register_blocks.h"

namespace slipstream {

// What an exact integer sum becomes. The same expression on every path.
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

// Rows [first, first + count) of a finished block of sums, on their way to the epilogue.
template <typename Epilogue>
class FinishedBlock {
 public:
  FinishedBlock(const Linear& linear, const QuantizedRows& x, const Epilogue& epilogue)
      : linear_(linear), x_(x), epilogue_(epilogue) {}

  void set(int pair, int first_row, int num_rows, const int32_t* low, const int32_t* high) {
    pair_ = pair;
    row_ = first_row;
    end_row_ = first_row + num_rows;
    low_ = low;
    high_ = high;
  }
  void finish() { finish(end_row_ - row_); }
  // The next `count` rows, as far as there are any.
  void finish(int count) {
    const int end = row_ + count < end_row_ ? row_ + count : end_row_;
    if (row_ >= end) return;
    for (; row_ + kTogether <= end; row_ += kTogether) finish_rows<kTogether>();
    for (; row_ < end; ++row_) finish_rows<1>();
  }

 private:
  static constexpr int kTogether = 4;

  template <int kRows>
  void finish_rows() {
    const IntScaling scaling(linear_, pair_);
    F16 a[kRows], b[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      I16 sums[2] = {I16::load(low_ + r * kPair), I16::load(low_ + r * kPair + 16)};
      if (linear_.num_outliers != 0) {
        sums[0] = sums[0] + shift_left<8>(I16::load(high_ + r * kPair));
        sums[1] = sums[1] + shift_left<8>(I16::load(high_ + r * kPair + 16));
      }
      const float scale = x_.scales[row_ + r];
      a[r] = scaling(sums[0], 0, scale);
      b[r] = scaling(sums[1], 1, scale);
    }
    low_ += kRows * kPair;
    if (linear_.num_outliers != 0) high_ += kRows * kPair;
    epilogue_(row_, pair_, a, b);
  }

  const Linear& linear_;
  const QuantizedRows& x_;
  const Epilogue& epilogue_;
  int pair_ = 0;
  int row_ = 0;
  int end_row_ = 0;
  const int32_t* low_ = nullptr;
  const int32_t* high_ = nullptr;
};

#if defined(__AVX512VNNI__)

// A few rows of a tile while its weights stream by, all in registers.
template <int kRows>
inline void stream_rows_of_tile(const Linear& linear, const QuantizedRows& x, int first_row, int tile,
                                I16 (&sums)[kRows]) {
  const int8_t* w = static_cast<const int8_t*>(linear.weights) + static_cast<int64_t>(tile) * linear.k * 16;
  TileSums<kRows> low;
  stream_tile(low, w, linear.k, x.low + static_cast<int64_t>(first_row) * linear.k, linear.k);
  // The 128 that made the inputs unsigned goes out again.
  const I16 excess = shift_left<7>(I16::load(linear.sums + tile * 16));
  low.give(0, [&](int row, I16 sum) { sums[row] = sum - excess; });
  if (linear.num_outliers == 0) return;
  TileSums<kRows> high;
  stream_tile(high, w, kNumOutliers, x.high + first_row * kNumOutliers, kNumOutliers);
  const I16 high_excess = shift_left<7>(I16::load(linear.outlier_sums + tile * 16));
  high.give(0, [&](int row, I16 sum) {
    sums[row] = sums[row] + shift_left<8>(sum - high_excess);
  });
}

template <int kRows, typename Epilogue>
inline void stream_rows(const Linear& linear, const QuantizedRows& x, int first_row, int pair,
                        const Epilogue& epilogue) {
  I16 sums[2][kRows];
  stream_rows_of_tile(linear, x, first_row, 2 * pair, sums[0]);
  stream_rows_of_tile(linear, x, first_row, 2 * pair + 1, sums[1]);
  const IntScaling scaling(linear, pair);
  F16 a[kRows], b[kRows];
  for (int row = 0; row < kRows; ++row) {
    a[row] = scaling(sums[0][row], 0, x.scales[first_row + row]);
    b[row] = scaling(sums[1][row], 1, x.scales[first_row + row]);
  }
  epilogue(first_row, pair, a, b);
}

// Up to 4 rows of all pairs, which are bound by reading weights.
template <typename Epilogue>
inline void stream_all(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                       int end_pair, const Epilogue& epilogue) {
  for (int pair = first_pair; pair < end_pair; ++pair) {
    int row = 0;
    for (; row + 4 <= num_rows; row += 4) stream_rows<4>(linear, x, row, pair, epilogue);
    for (; row + 2 <= num_rows; row += 2) stream_rows<2>(linear, x, row, pair, epilogue);
    if (row < num_rows) stream_rows<1>(linear, x, row, pair, epilogue);
  }
}

// Rows of a block times a pair: out[row][32] = the sums over the first `k` inputs. Tiles of weights are
// `tile_bytes` apart.
template <int kRows>
SLIPSTREAM_APART void block_of_rows(const int8_t* weights, int64_t tile_bytes, int k, const int8_t* x,
                                    int64_t ldx, const int32_t* starts, int32_t* out) {
  BlockSums<kRows, 2> sums;
  sums.start(starts);
  for (int i = 0; i < k; i += 4) {
    const int8_t* line = weights + static_cast<int64_t>(i) * 16;
    prefetch_far(line + kFarBytes);
    prefetch_far(line + tile_bytes + kFarBytes);
    const __m512i lines[2] = {made_unsigned(_mm512_loadu_si512(line)),
                              made_unsigned(_mm512_loadu_si512(line + tile_bytes))};
    sums.add_unsigned(lines, x + i, ldx);
  }
  sums.give([&](int row, int tile, __m512i sum) {
    _mm512_store_si512(out + row * kPair + tile * 16, sum);
  });
}

// Many rows: a pair's weights are read from memory for the first block, and from the cache for the others.
template <typename Epilogue>
inline void block_rows(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                       int end_pair, int32_t* starts, const Epilogue& epilogue) {
  constexpr int kMostRows = 12;
  alignas(64) int32_t low[kMostRows * kPair];
  alignas(64) int32_t high[kMostRows * kPair];
  int32_t* high_starts = starts + num_rows;
  for (int row = 0; row < num_rows; ++row) {
    starts[row] = start_of(x.low + static_cast<int64_t>(row) * linear.k, linear.k);
    high_starts[row] = start_of(x.high + row * linear.num_outliers, linear.num_outliers);
  }
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  const int64_t tile_bytes = static_cast<int64_t>(linear.k) * 16;
  FinishedBlock<Epilogue> finished(linear, x, epilogue);
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const int8_t* w = weights + pair * 2 * tile_bytes;
    each_block<kMostRows>(num_rows, [&](int row, auto count) {
      block_of_rows<count.value>(w, tile_bytes, linear.k, x.low + static_cast<int64_t>(row) * linear.k,
                                 linear.k, starts + row, low);
      if (linear.num_outliers != 0) {
        block_of_rows<count.value>(w, tile_bytes, kNumOutliers, x.high + row * kNumOutliers,
                                   kNumOutliers, high_starts + row, high);
      }
      finished.set(pair, row, count.value, low, high);
      finished.finish();
    });
  }
}

#endif

#if defined(__AMX_INT8__)

inline void prefetch_lines(const int8_t* w, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) prefetch_far(w + i);
}

// Up to 16 rows: C in tiles 0 and 1, the outliers' high plane in 2 and 3. `between()` is called at
// every step over k.
template <typename Between>
inline void pair_of_16(const Linear& linear, const QuantizedRows& x, int first_row, const int8_t* w,
                       int32_t* low, int32_t* high, const Between& between) {
  const int64_t tile_bytes = static_cast<int64_t>(linear.k) * 16;
  const int8_t* a = x.low + static_cast<int64_t>(first_row) * linear.k;
  _tile_zero(0);
  _tile_zero(1);
  for (int k = 0; k < linear.k; k += kStep) {
    prefetch_lines(w + k * 16 + kFarBytes, kStep * 16);
    prefetch_lines(w + tile_bytes + k * 16 + kFarBytes, kStep * 16);
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
      _tile_stored(2, high, kPair * 4);
      _tile_stored(3, high + 16, kPair * 4);
    }
    between();
  }
  _tile_stored(0, low, kPair * 4);
  _tile_stored(1, low + 16, kPair * 4);
}

inline void store_32(int32_t* c) {
  _tile_stored(0, c, kPair * 4);
  _tile_stored(1, c + 16, kPair * 4);
  _tile_stored(2, c + kTileRows * kPair, kPair * 4);
  _tile_stored(3, c + kTileRows * kPair + 16, kPair * 4);
}

// C += A B for one step over k: two A tiles by two B tiles, so that each that is loaded is used twice.
inline void step_of_32(const int8_t* a, int64_t lda, const int8_t* w, int64_t tile_bytes) {
  _tile_loadd(6, w, 64);
  _tile_loadd(7, w + tile_bytes, 64);
  _tile_loadd(4, a, lda);
  _tile_dpbssd(0, 4, 6);
  _tile_dpbssd(1, 4, 7);
  _tile_loadd(5, a + kTileRows * lda, lda);
  _tile_dpbssd(2, 5, 6);
  _tile_dpbssd(3, 5, 7);
}

// 32 rows.
template <typename Between>
inline void pair_of_32(const Linear& linear, const QuantizedRows& x, int first_row, const int8_t* w,
                       int32_t* low, int32_t* high, const Between& between) {
  const int64_t tile_bytes = static_cast<int64_t>(linear.k) * 16;
  const int8_t* a = x.low + static_cast<int64_t>(first_row) * linear.k;
  if (linear.num_outliers != 0) {
    zero_32();
    step_of_32(x.high + first_row * kNumOutliers, kNumOutliers, w, tile_bytes);
    store_32(high);
  }
  zero_32();
  for (int k = 0; k < linear.k; k += kStep) {
    step_of_32(a + k, linear.k, w + k * 16, tile_bytes);
    between();
  }
  store_32(low);
}

// The epilogue of a block is computed while the tiles of the next one are multiplied.
template <typename Epilogue>
inline void tile_rows(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                      int end_pair, const Epilogue& epilogue) {
  alignas(64) int32_t low[2][kPairRows * kPair];
  alignas(64) int32_t high[2][kPairRows * kPair];
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  const int64_t pair_bytes = static_cast<int64_t>(kPair) * linear.k;
  const int num_steps = linear.k / kStep;
  FinishedBlock<Epilogue> finished(linear, x, epilogue);
  // Rows beyond the last are padding up to a whole tile; their sums are not looked at.
  configure_matrix_tiles(num_rows < kTileRows ? num_rows : kTileRows);
  int buffer = 0;
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const int8_t* w = weights + pair * pair_bytes;
    for (int row = 0; row < num_rows; row += kPairRows) {
      const int count = num_rows - row < kPairRows ? num_rows - row : kPairRows;
      const int rows_each = (kPairRows + num_steps - 1) / num_steps;
      if (count > kTileRows) {
        const int8_t* next = row == 0 ? w + pair_bytes : nullptr;
        pair_of_32(linear, x, row, w, low[buffer], high[buffer], [&] {
          // Once a pair: the next one's weights come into the cache.
          if (next != nullptr) {
            prefetch_lines(next, pair_bytes / num_steps);
            next += pair_bytes / num_steps;
          }
          finished.finish(rows_each);
        });
      } else {
        pair_of_16(linear, x, row, w, low[buffer], high[buffer], [&] { finished.finish(rows_each); });
      }
      finished.finish();
      finished.set(pair, row, count, low[buffer], high[buffer]);
      buffer = 1 - buffer;
    }
  }
  finished.finish();
}

#endif

template <typename Epilogue>
inline void plain_rows(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                       int end_pair, const Epilogue& epilogue) {
  alignas(64) int32_t low[kTileRows * kPair];
  alignas(64) int32_t high[kTileRows * kPair];
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  FinishedBlock<Epilogue> finished(linear, x, epilogue);
  for (int pair = first_pair; pair < end_pair; ++pair) {
    const int8_t* w = weights + static_cast<int64_t>(pair) * kPair * linear.k;
    for (int row = 0; row < num_rows; row += kTileRows) {
      const int count = num_rows - row < kTileRows ? num_rows - row : kTileRows;
      pair_plain(w, linear.k, linear.k, x.low + static_cast<int64_t>(row) * linear.k, linear.k,
                 count, low);
      if (linear.num_outliers != 0) {
        pair_plain(w, linear.k, kNumOutliers, x.high + row * kNumOutliers, kNumOutliers, count,
                   high);
      }
      finished.set(pair, row, count, low, high);
      finished.finish();
    }
  }
}

}  // namespace detail

// What a thread needs to multiply so many rows: where the sums of both planes begin.
inline size_t int8_scratch_bytes(int num_rows) { return 2 * sizeof(int32_t) * static_cast<size_t>(num_rows); }

// `scratch` is the thread's own, `int8_scratch_bytes(num_rows)`, on a cache line.
template <typename Epilogue>
inline void linear_int8(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                        int end_pair, [[maybe_unused]] int8_t* scratch, const Epilogue& epilogue) {
  assert(first_pair >= 0 && end_pair * kPair <= linear.n && "pairs are of the matrix");
#if defined(__AMX_INT8__)
  // One or two rows are computed while the weights stream by; more are worth whole tiles.
  if (num_rows > 2) {
    return detail::tile_rows(linear, x, num_rows, first_pair, end_pair, epilogue);
  }
  detail::stream_all(linear, x, num_rows, first_pair, end_pair, epilogue);
#elif defined(__AVX512VNNI__)
  if (num_rows > 4) {
    auto* starts = reinterpret_cast<int32_t*>(scratch);
    return detail::block_rows(linear, x, num_rows, first_pair, end_pair, starts, epilogue);
  }
  detail::stream_all(linear, x, num_rows, first_pair, end_pair, epilogue);
#else
  detail::plain_rows(linear, x, num_rows, first_pair, end_pair, epilogue);
#endif
}

}  // namespace slipstream
