// Rows times weights of 4 bits: codes go into the products as they are read, and the sums of a group are
// scaled in integers. Few rows are computed while the weights stream by, more in blocks.
//
//   sum_k W x = sum over groups of factor * sum (code - 7) x + (offset + 7 factor) * sum x
#pragma once

#if defined(__AVX512VNNI__)

#include "register_blocks.h"
#include "sums_int4.h"

namespace slipstream::detail {

// Of some inputs of a row, as the products take it: minus seven times their sum, and the sum in the upper
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

// The sum of a group, of (code - 7) x, lies within -8 * 128 * 32 and 8 * 127 * 32: it fits 16 bits.
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
    even = _mm512_dpbusd_epi32(even, low_halves, broadcast_four(in.x + at));
    odd = _mm512_dpbusd_epi32(odd, high_halves, broadcast_four(in.x + at + 4));
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
        _mm512_dpbusd_epi32(_mm512_set1_epi32(in.sums[i].minus_seven), codes, broadcast_four(in.x + 4 * i));
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
    for (int i = 0; i < kGroupBytes; i += 64) stream_ahead(lines + i);
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

// Sums of a block of rows over a pair: those of the present group, and the scaled totals of all groups.
template <int kRows>
struct Int4BlockSums {
  BlockSums<kRows, 2> group, totals;

  void begin(const Int4Inputs& in, int i) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512i minus_seven = _mm512_set1_epi32(in.sums[r * in.ld_sums + i].minus_seven);
      group.sums[r][0] = minus_seven;
      group.sums[r][1] = minus_seven;
    }
  }
  void end(const Int4Inputs& in, int i, const __m512i (&scales)[2]) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const InputSum& inputs = in.sums[r * in.ld_sums + i];
      totals.sums[r][0] = scale_sum(totals.sums[r][0], group.sums[r][0], inputs, scales[0]);
      totals.sums[r][1] = scale_sum(totals.sums[r][1], group.sums[r][1], inputs, scales[1]);
    }
  }
  void give(int32_t* out) const {
    totals.give([&](int row, int tile, __m512i total) {
      _mm512_store_si512(out + row * kPair + tile * 16, total);
    });
  }
};

inline __m512i low_codes(__m512i line) { return _mm512_and_si512(line, _mm512_set1_epi8(0x0F)); }
inline __m512i high_codes(__m512i line) { return low_codes(_mm512_srli_epi16(line, 4)); }

// A block of rows times a pair: out[row][32] = the totals of all groups.
template <int kRows>
SLIPSTREAM_APART void block_of_groups(const Int4Inputs& in, const uint8_t* pair, int num_groups,
                                      int32_t* out) {
  const int64_t tile_bytes = static_cast<int64_t>(num_groups) * kGroupBytes;
  Int4BlockSums<kRows> sums;
  sums.totals.clear();
  for (int i = 0; i < num_groups; ++i) {
    const uint8_t* lines[2] = {pair + i * kGroupBytes, pair + tile_bytes + i * kGroupBytes};
    for (int at = 0; at < kGroupBytes; at += 64) {
      prefetch_far(lines[0] + kFarBytes + at);
      prefetch_far(lines[1] + kFarBytes + at);
    }
    sums.begin(in, i);
    const int8_t* x = in.x + i * kGroup;
#pragma GCC unroll 4
    for (int line = 0; line < kCodeLines; ++line, x += 8) {
      const __m512i codes[2] = {_mm512_loadu_si512(lines[0] + line * 64),
                                _mm512_loadu_si512(lines[1] + line * 64)};
      sums.group.add_unsigned({low_codes(codes[0]), low_codes(codes[1])}, x, in.ldx);
      sums.group.add_unsigned({high_codes(codes[0]), high_codes(codes[1])}, x + 4, in.ldx);
    }
    sums.end(in, i, {_mm512_loadu_si512(lines[0] + kCodeLines * 64),
                     _mm512_loadu_si512(lines[1] + kCodeLines * 64)});
  }
  sums.give(out);
}

// The same of the outlier quads, where only some inputs have a high plane.
template <int kRows>
SLIPSTREAM_APART void block_of_outliers(const Int4Inputs& in, const Linear& linear, const uint8_t* pair,
                                        int32_t* out) {
  const int64_t tile_bytes = tile_bytes_i4(linear);
  Int4BlockSums<kRows> sums;
  sums.totals.clear();
  for (int i = 0; i < linear.num_outliers / 4; ++i) {
    const int quad = outlier_quad(linear, i);
    const uint8_t* lines[2] = {pair + quad / 8 * kGroupBytes, pair + tile_bytes + quad / 8 * kGroupBytes};
    const int at = quad % 8 / 2 * 64;
    __m512i codes[2] = {_mm512_loadu_si512(lines[0] + at), _mm512_loadu_si512(lines[1] + at)};
    for (auto& of_tile : codes) of_tile = quad % 2 != 0 ? high_codes(of_tile) : low_codes(of_tile);
    sums.begin(in, i);
    sums.group.add_unsigned(codes, in.x + 4 * i, in.ldx);
    sums.end(in, i, {_mm512_loadu_si512(lines[0] + kCodeLines * 64),
                     _mm512_loadu_si512(lines[1] + kCodeLines * 64)});
  }
  sums.give(out);
}

// All rows with the sums of their inputs.
class StreamedRows {
 public:
  static constexpr int kMostRows = 6;  // of a block: a row has two sums for each of two tiles

  // `sums` is memory for those of all rows.
  StreamedRows(const Linear& linear, const QuantizedRows& x, int num_rows, InputSum* sums)
      : linear_(linear),
        x_(x),
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

  // Rows [row, row + kRows), while their weights stream by.
  template <int kRows, typename Epilogue>
  void stream(int row, int pair, const Epilogue& epilogue) const {
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
      const float scale = x_.scales[row + r];
      a[r] = scaling(low_totals[0][r], high_totals[0][r], 0, scale);
      b[r] = scaling(low_totals[1][r], high_totals[1][r], 1, scale);
    }
    epilogue(row, pair, a, b);
  }

  // The same rows as a block.
  template <int kRows, typename Epilogue>
  void multiply(int row, int pair, const Epilogue& epilogue) const {
    alignas(64) int32_t low[kMostRows * kPair], high[kMostRows * kPair];
    const uint8_t* weights = tile_i4(linear_, 2 * pair);
    block_of_groups<kRows>(low_inputs(row), weights, num_low_, low);
    if (is_all_high_) {
      block_of_groups<kRows>(high_inputs(row), weights, num_low_, high);
    } else if (linear_.num_outliers != 0) {
      block_of_outliers<kRows>(high_inputs(row), linear_, weights, high);
    }
    const Int4Scaling scaling(linear_, pair);
    finish_rows(row, kRows, pair, epilogue, [&](int r, int tile) {
      const int at = r * kPair + tile * 16;
      const I16 high_total = linear_.num_outliers != 0 ? I16::load(high + at) : I16::zero();
      return scaling(I16::load(low + at), high_total, tile, x_.scales[row + r]);
    });
  }

 private:
  int high_count() const { return is_all_high_ ? kGroup : 4; }
  Int4Inputs low_inputs(int row) const {
    return {x_.low + static_cast<int64_t>(row) * linear_.k, linear_.k, low_ + row * num_low_, num_low_};
  }
  Int4Inputs high_inputs(int row) const {
    return {x_.high + static_cast<int64_t>(row) * linear_.num_outliers, linear_.num_outliers,
            high_ + row * num_high_, num_high_};
  }

  const Linear& linear_;
  const QuantizedRows& x_;
  const bool is_all_high_;
  const int num_low_, num_high_;
  InputSum* low_;
  InputSum* high_;
};

// A pair's codes are read from memory for the first of some rows, and from the cache for the others.
template <typename Epilogue>
inline void stream_all_i4(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                          int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  const StreamedRows rows(linear, x, num_rows, reinterpret_cast<InputSum*>(scratch));
  const bool is_few = num_rows <= 2;
  for (int pair = first_pair; pair < end_pair; ++pair) {
    int row = 0;
    for (; is_few && row + 4 <= num_rows; row += 4) rows.template stream<4>(row, pair, epilogue);
    for (; is_few && row + 2 <= num_rows; row += 2) rows.template stream<2>(row, pair, epilogue);
    if (is_few && row < num_rows) rows.template stream<1>(row, pair, epilogue);
    if (is_few) continue;
    each_block<StreamedRows::kMostRows>(num_rows, [&](int first, auto count) {
      rows.template multiply<count.value>(first, pair, epilogue);
    });
  }
}

}  // namespace slipstream::detail

#endif
