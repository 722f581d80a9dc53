// y = x W^T for weights of 4 bits in groups. Few rows: codes go into the products as they are read,
// and the sums of a group are scaled in integers. Many rows: a pair of tiles is unpacked to integers
// of 16 bits, two planes of int8, and multiplied as such. Both are the same exact sum:
//
//   sum_k W x = sum over groups of factor * sum (code - 7) x + (offset + 7 factor) * sum x
//
// The low and the high plane of x have sums of their own; whoever packs the weights sees to it that
// neither leaves 31 bits. y = (low + 256 high) * scale of the column * scale of the row.
#pragma once

#include <cassert>

#include "linear.h"
#include "unpack_i4.h"

namespace slipstream {

// What a thread needs to multiply: planes of a pair, or sums of 32 rows' inputs (8 bytes for each
// group and outlier quad, of which there are as many as groups where all inputs are outliers).
inline size_t int4_scratch_bytes(int k) {
  return static_cast<size_t>(2 * kPair * k + kPairRows * kNumOutliers / 4 * 8);
}

namespace detail {

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

inline WeightPlanes planes_in(int8_t* scratch, int k) { return {scratch, scratch + kPair * k}; }

// Which group of four inputs stands at place `i` of the high plane.
inline int outlier_quad(const Linear& linear, int i) {
  return linear.outliers != nullptr ? linear.outliers[i] : i;
}

#if defined(__AVX512VNNI__)

// Of some inputs of a row, as the products take it: seven times their sum, and the sum in the upper
// half of a word.
struct InputSum {
  int32_t minus_seven;
  int32_t upper;

  void set(const int8_t* x, int count) {
    int32_t sum = 0;
    for (int i = 0; i < count; ++i) sum += x[i];
    minus_seven = -kMiddleCode * sum;
    upper = static_cast<int32_t>(static_cast<uint32_t>(sum) << 16);
  }
};

// Inputs of some rows: their integers, and the sums of each group (or outlier quad).
struct Int4Inputs {
  const int8_t* x;
  int64_t ldx;
  const InputSum* sums;
  int64_t ld_sums;

  Int4Inputs next_row() const { return {x + ldx, ldx, sums + ld_sums, ld_sums}; }
};

// Codes times inputs: at most 32 * 15 * 128, and minus seven times the sum it fits 16 bits.
inline __m512i four_of(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

// (sum of (code - 7) x, sum of x) times (factor, offset + 7 factor), added to the total.
inline __m512i scale_sum(__m512i total, __m512i sum, const InputSum& inputs, __m512i scales) {
  // 0xEA: (a & b) | c
  const __m512i both = _mm512_ternarylogic_epi32(sum, _mm512_set1_epi32(0xFFFF),
                                                 _mm512_set1_epi32(inputs.upper), 0xEA);
  return _mm512_dpwssd_epi32(total, both, scales);
}

// Sums of some rows over one tile. Members instead of an array: GCC keeps these in registers.
template <int kRows>
struct Int4Sums {
  __m512i total = _mm512_setzero_si512();
  __m512i even, odd;  // of this group: inputs of the low halves, 16 times those of the high ones
  Int4Sums<kRows - 1> others;

  void begin(const Int4Inputs& in, int group) {
    even = _mm512_set1_epi32(in.sums[group].minus_seven);
    odd = _mm512_setzero_si512();
    others.begin(in.next_row(), group);
  }
  void add(const Int4Inputs& in, int at, __m512i low_halves, __m512i high_halves) {
    even = _mm512_dpbusd_epi32(even, low_halves, four_of(in.x + at));
    odd = _mm512_dpbusd_epi32(odd, high_halves, four_of(in.x + at + 4));
    others.add(in.next_row(), at, low_halves, high_halves);
  }
  void end(const Int4Inputs& in, int group, __m512i scales) {
    const __m512i sum = _mm512_add_epi32(even, _mm512_srai_epi32(odd, 4));
    total = scale_sum(total, sum, in.sums[group], scales);
    others.end(in.next_row(), group, scales);
  }
  // The outlier quad `i`, whose codes these are.
  void add_quad(const Int4Inputs& in, int i, __m512i codes, __m512i scales) {
    const __m512i sum =
        _mm512_dpbusd_epi32(_mm512_set1_epi32(in.sums[i].minus_seven), codes, four_of(in.x + 4 * i));
    total = scale_sum(total, sum, in.sums[i], scales);
    others.add_quad(in.next_row(), i, codes, scales);
  }
  // take(row, total)
  template <typename Take>
  void give(int row, const Take& take) const {
    take(row, I16{total});
    others.give(row + 1, take);
  }
};

template <>
struct Int4Sums<0> {
  void begin(const Int4Inputs&, int) {}
  void add(const Int4Inputs&, int, __m512i, __m512i) {}
  void end(const Int4Inputs&, int, __m512i) {}
  void add_quad(const Int4Inputs&, int, __m512i, __m512i) {}
  template <typename Take>
  void give(int, const Take&) const {}
};

// A tile streams by. `high` is summed along where all inputs have a high plane.
template <int kLow, int kHigh>
inline void stream_tile(Int4Sums<kLow>& low, const Int4Inputs& low_inputs, Int4Sums<kHigh>& high,
                        const Int4Inputs& high_inputs, const uint8_t* tile, int num_groups) {
  const __m512i low_mask = _mm512_set1_epi8(0x0F), high_mask = _mm512_set1_epi8(static_cast<char>(0xF0));
  for (int group = 0; group < num_groups; ++group) {
    const uint8_t* lines = tile + group * kGroupBytes;
    for (int i = 0; i < kGroupBytes; i += 64) prefetch(lines + kPrefetchBytes + i);
    low.begin(low_inputs, group);
    high.begin(high_inputs, group);
#pragma GCC unroll 4
    for (int line = 0; line < kCodeLines; ++line) {
      const __m512i codes = _mm512_loadu_si512(lines + line * 64);
      const __m512i low_halves = _mm512_and_si512(codes, low_mask);
      const __m512i high_halves = _mm512_and_si512(codes, high_mask);
      low.add(low_inputs, group * kGroup + line * 8, low_halves, high_halves);
      high.add(high_inputs, group * kGroup + line * 8, low_halves, high_halves);
    }
    const __m512i scales = _mm512_loadu_si512(lines + kCodeLines * 64);
    low.end(low_inputs, group, scales);
    high.end(high_inputs, group, scales);
  }
}

// The high plane where only some quads have one: their codes are in the cache by now.
template <int kRows>
inline void add_outliers(Int4Sums<kRows>& high, const Int4Inputs& inputs, const Linear& linear,
                         const uint8_t* tile) {
  const __m512i low_mask = _mm512_set1_epi8(0x0F);
  for (int i = 0; i < linear.num_outliers / 4; ++i) {
    const int quad = outlier_quad(linear, i);
    const uint8_t* lines = tile + quad / 8 * kGroupBytes;
    const __m512i line = _mm512_loadu_si512(lines + quad % 8 / 2 * 64);
    const __m512i halves = quad % 2 != 0 ? _mm512_srli_epi16(line, 4) : line;
    high.add_quad(inputs, i, _mm512_and_si512(halves, low_mask),
                  _mm512_loadu_si512(lines + kCodeLines * 64));
  }
}

// Some rows with the sums of their inputs.
class StreamedRows {
 public:
  // `sums` is memory for those of all rows.
  StreamedRows(const Linear& linear, const QuantizedRows& x, int first_row, int num_rows, InputSum* sums)
      : linear_(linear),
        x_(x),
        first_row_(first_row),
        is_all_high_(linear.num_outliers == linear.k),
        num_low_(linear.k / kGroup),
        num_high_(linear.num_outliers / high_count()),
        low_(sums),
        high_(sums + num_rows * num_low_) {
    for (int row = 0; row < num_rows; ++row) {
      const Int4Inputs low = low_inputs(row), high = high_inputs(row);
      for (int i = 0; i < num_low_; ++i) low_[row * num_low_ + i].set(low.x + i * kGroup, kGroup);
      for (int i = 0; i < num_high_; ++i) {
        high_[row * num_high_ + i].set(high.x + i * high_count(), high_count());
      }
    }
  }

  // Rows [row, row + kRows) of these.
  template <int kRows, typename Epilogue>
  void multiply(int row, int pair, const Epilogue& epilogue) const {
    I16 low_totals[2][kRows], high_totals[2][kRows];
    for (int tile = 0; tile < 2; ++tile) {
      const uint8_t* lines = tile_i4(linear_, 2 * pair + tile);
      Int4Sums<kRows> low, high;
      if (is_all_high_) {
        stream_tile(low, low_inputs(row), high, high_inputs(row), lines, num_low_);
      } else {
        Int4Sums<0> none;
        stream_tile(low, low_inputs(row), none, {}, lines, num_low_);
        add_outliers(high, high_inputs(row), linear_, lines);
      }
      low.give(0, [&](int r, I16 total) { low_totals[tile][r] = total; });
      high.give(0, [&](int r, I16 total) { high_totals[tile][r] = total; });
    }
    const Int4Scaling scaling(linear_, pair);
    F16 a[kRows], b[kRows];
    for (int r = 0; r < kRows; ++r) {
      const float scale = x_.scales[first_row_ + row + r];
      a[r] = scaling(low_totals[0][r], high_totals[0][r], 0, scale);
      b[r] = scaling(low_totals[1][r], high_totals[1][r], 1, scale);
    }
    epilogue(first_row_ + row, pair, a, b);
  }

 private:
  int high_count() const { return is_all_high_ ? kGroup : 4; }
  Int4Inputs low_inputs(int row) const {
    return {x_.low + static_cast<int64_t>(first_row_ + row) * linear_.k, linear_.k,
            low_ + row * num_low_, num_low_};
  }
  Int4Inputs high_inputs(int row) const {
    return {x_.high + static_cast<int64_t>(first_row_ + row) * linear_.num_outliers,
            linear_.num_outliers, high_ + row * num_high_, num_high_};
  }

  const Linear& linear_;
  const QuantizedRows& x_;
  const int first_row_;
  const bool is_all_high_;
  const int num_low_, num_high_;
  InputSum* low_;
  InputSum* high_;
};

// A pair's codes are read from memory for the first of some rows, and from the cache for the others.
template <typename Epilogue>
inline void stream_all_i4(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                          int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  for (int first = 0; first < num_rows; first += kPairRows) {
    const int count = num_rows - first < kPairRows ? num_rows - first : kPairRows;
    const StreamedRows rows(linear, x, first, count, reinterpret_cast<InputSum*>(scratch));
    for (int pair = first_pair; pair < end_pair; ++pair) {
      int row = 0;
      for (; row + 4 <= count; row += 4) rows.multiply<4>(row, pair, epilogue);
      for (; row + 2 <= count; row += 2) rows.multiply<2>(row, pair, epilogue);
      if (row < count) rows.multiply<1>(row, pair, epilogue);
    }
  }
}

#endif

// The sums of up to 32 rows and a pair, [plane of the weights][row][32].
using PlaneSums = int32_t[2][kPairRows * kPair];

// Rows of sums on their way to the epilogue. Sums over high inputs are absent without outliers.
template <typename Epilogue>
inline void finish_planes(const Linear& linear, const QuantizedRows& x, int pair, int first_row,
                          int num_rows, const PlaneSums& low, const PlaneSums& high,
                          const Epilogue& epilogue) {
  const Int4Scaling scaling(linear, pair);
  const auto whole = [](const PlaneSums& sums, int at) {
    return I16::load(sums[0] + at) + shift_left<8>(I16::load(sums[1] + at));
  };
  const auto finish = [&](auto& a, auto& b, int row) {
    for (int r = 0; r < count_of(a); ++r) {
      const int at = (row + r) * kPair;
      const float scale = x.scales[first_row + row + r];
      const bool has_high = linear.num_outliers != 0;
      a[r] = scaling(whole(low, at), has_high ? whole(high, at) : I16{}, 0, scale);
      b[r] = scaling(whole(low, at + 16), has_high ? whole(high, at + 16) : I16{}, 1, scale);
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

// The rows of a pair's planes that belong to outliers, as [2][num_outliers/4][16][4].
inline void gather_outliers(const Linear& linear, const int8_t* plane, int8_t* to) {
  for (int tile = 0; tile < 2; ++tile) {
    for (int i = 0; i < linear.num_outliers / 4; ++i, to += 64) {
      std::memcpy(to, plane + tile * 16 * linear.k + outlier_quad(linear, i) * 64, 64);
    }
  }
}

#if defined(__AMX_INT8__)

// C[row][32] = sum over k of a[row] and the pair, for 32 rows, or 16 of which the last may be padding.
inline void multiply_tiles(const int8_t* a, int64_t lda, bool is_double, const int8_t* pair, int k,
                           int32_t* c) {
  const int64_t tile_bytes = 16LL * k;
  if (is_double) {
    zero_32();
    for (int i = 0; i < k; i += kStep) step_of_32(a + i, lda, pair + i * 16, tile_bytes);
    return store_32(c);
  }
  _tile_zero(0);
  _tile_zero(1);
  for (int i = 0; i < k; i += kStep) {
    _tile_loadd(6, pair + i * 16, 64);
    _tile_loadd(7, pair + tile_bytes + i * 16, 64);
    _tile_loadd(4, a + i, lda);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
  }
  _tile_stored(0, c, kPair * 4);
  _tile_stored(1, c + 16, kPair * 4);
}

inline void configure_rows(int num_rows) {
  configure_matrix_tiles(num_rows < kTileRows ? num_rows : kTileRows);
}

#else

inline void multiply_rows(const int8_t* a, int64_t lda, int num_rows, const int8_t* pair, int k,
                          int32_t* c) {
  pair_plain(pair, k, k, a, static_cast<int>(lda), num_rows, c);
}

#endif

template <typename Epilogue>
inline void unpacked_rows(const Linear& linear, const QuantizedRows& x, int num_rows,
                          int first_pair, int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  alignas(64) PlaneSums low, high;
  alignas(64) int8_t outliers[2][kPair * kNumOutliers];
  const WeightPlanes planes = planes_in(scratch, linear.k);
  const int8_t* weights[2] = {planes.low, planes.high};
  const bool is_all_high = linear.num_outliers == linear.k;
  const int8_t* high_weights[2] = {is_all_high ? planes.low : outliers[0],
                                   is_all_high ? planes.high : outliers[1]};
#if defined(__AMX_INT8__)
  configure_rows(num_rows);
#endif
  for (int pair = first_pair; pair < end_pair; ++pair) {
    unpack_pair(linear, pair, planes);
    for (int plane = 0; !is_all_high && plane < 2; ++plane) {
      gather_outliers(linear, weights[plane], outliers[plane]);
    }
    for (int row = 0; row < num_rows; row += kPairRows) {
      const int count = num_rows - row < kPairRows ? num_rows - row : kPairRows;
      const auto multiply = [&](const int8_t* a, int k, const int8_t* w, int32_t* c) {
#if defined(__AMX_INT8__)
        multiply_tiles(a + static_cast<int64_t>(row) * k, k, count > kTileRows, w, k, c);
#else
        multiply_rows(a + static_cast<int64_t>(row) * k, k, count, w, k, c);
#endif
      };
      for (int plane = 0; plane < 2; ++plane) {
        multiply(x.low, linear.k, weights[plane], low[plane]);
        if (linear.num_outliers != 0) {
          multiply(x.high, linear.num_outliers, high_weights[plane], high[plane]);
        }
      }
      finish_planes(linear, x, pair, row, count, low, high, epilogue);
    }
  }
}

}  // namespace detail

// `scratch` is the thread's own, `int4_scratch_bytes(k)`, on a cache line.
template <typename Epilogue>
inline void linear_int4(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                        int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  assert(first_pair >= 0 && end_pair * kPair <= linear.n && "pairs are of the matrix");
#if defined(__AMX_INT8__)
  // Unpacking a pair takes as long as some eight rows of products.
  constexpr int kMaxStreamed = 8;
#elif defined(__AVX512VNNI__)
  constexpr int kMaxStreamed = 1 << 30;
#else
  constexpr int kMaxStreamed = 0;
#endif
  if (num_rows > kMaxStreamed) {
    return detail::unpacked_rows(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
  }
#if defined(__AVX512VNNI__)
  detail::stream_all_i4(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
#endif
}

}  // namespace slipstream
