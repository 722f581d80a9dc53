// Many rows times weights of 4 bits: a tile is unpacked to two planes of int8 while it is multiplied
// with the first rows, and stays in the cache for the others.
#pragma once

#if defined(__AMX_INT8__)

#include "sums_int4.h"

namespace slipstream::detail {

// A tile of 16 columns as it is unpacked: planes [k/4][16][4], and of them the outliers' lines.
struct UnpackedTile {
  const uint8_t* codes;
  int8_t* planes[2];
  alignas(64) int8_t outliers[2][16 * kNumOutliers];

  UnpackedTile(int8_t* scratch, int k) : codes(nullptr), planes{scratch, scratch + 16 * k} {}

  // The part that one step over k takes.
  void unpack_step(int step) {
    for (int group = 2 * step; group < 2 * step + 2; ++group) {
      const uint8_t* from = codes + group * kGroupBytes;
      for (int i = 0; i < kGroupBytes; i += 64) prefetch_far(from + kFarBytes + i);
      const int at = group * kGroup * 16;
      unpack_group(from, planes[0] + at, planes[1] + at);
    }
  }
  void gather_outliers(const Linear& linear) {
    for (int plane = 0; plane < 2; ++plane) {
      for (int i = 0; i < kNumOutliers / 4; ++i) {
        std::memcpy(outliers[plane] + i * 64, planes[plane] + outlier_quad(linear, i) * 64, 64);
      }
    }
  }
};

// Up to two tiles of rows with both planes of a tile of weights, and where their sums go.
struct TileProduct {
  const int8_t* rows[2];  // the second may be null
  int64_t ld_rows;
  const int8_t* planes[2];
  int32_t* sums[2][2];  // [rows][plane], 32 apart

  // `between(step)` is called before the products of each step.
  template <typename Between>
  void run(int num_steps, const Between& between) const {
    return rows[1] != nullptr ? run_tiles<2>(num_steps, between) : run_tiles<1>(num_steps, between);
  }

 private:
  template <int kTiles, typename Between>
  void run_tiles(int num_steps, const Between& between) const {
    zero_32();
    for (int step = 0; step < num_steps; ++step) {
      between(step);
      _tile_loadd(4, rows[0] + step * kStep, ld_rows);
      _tile_loadd(6, planes[0] + step * kStep * 16, 64);
      _tile_dpbssd(0, 4, 6);
      _tile_loadd(7, planes[1] + step * kStep * 16, 64);
      _tile_dpbssd(1, 4, 7);
      if constexpr (kTiles == 2) {
        _tile_loadd(5, rows[1] + step * kStep, ld_rows);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
      }
    }
    _tile_stored(0, sums[0][0], kPair * 4);
    _tile_stored(1, sums[0][1], kPair * 4);
    if constexpr (kTiles == 2) {
      _tile_stored(2, sums[1][0], kPair * 4);
      _tile_stored(3, sums[1][1], kPair * 4);
    }
  }
};

// Up to 32 rows and a pair.
template <typename Epilogue>
class TileRows {
 public:
  TileRows(const Linear& linear, const QuantizedRows& x, int8_t* scratch, const Epilogue& epilogue)
      : linear_(linear),
        x_(x),
        epilogue_(epilogue),
        num_steps_(linear.k / kStep),
        is_all_high_(linear.num_outliers == linear.k),
        tiles_{{scratch, linear.k}, {scratch + 32 * linear.k, linear.k}} {}

  // Later rows of a pair find it unpacked.
  void multiply(int pair, int first_row, int num_rows) {
    for (int tile = 0; tile < 2; ++tile) {
      tiles_[tile].codes = tile_i4(linear_, 2 * pair + tile);
      const int8_t* low = x_.low + static_cast<int64_t>(first_row) * linear_.k;
      const bool is_single = num_rows <= kTileRows;
      const int8_t* low_rows[2] = {low, is_single ? nullptr : low + kTileRows * linear_.k};
      const int8_t* high = x_.high + static_cast<int64_t>(first_row) * linear_.num_outliers;
      const int8_t* high_rows[2] = {high, is_single ? nullptr : high + kTileRows * linear_.num_outliers};
      if (is_all_high_ && is_single) {
        // Both planes of the inputs at once.
        const TileProduct product{{low, high}, linear_.k, {tiles_[tile].planes[0], tiles_[tile].planes[1]},
                                  {{low_[0] + tile * 16, low_[1] + tile * 16},
                                   {high_[0] + tile * 16, high_[1] + tile * 16}}};
        run(product, tile, first_row);
        continue;
      }
      run(product_of(low_rows, linear_.k, tiles_[tile].planes, low_, tile), tile, first_row);
      if (linear_.num_outliers == 0) continue;
      if (is_all_high_) {
        product_of(high_rows, linear_.k, tiles_[tile].planes, high_, tile).run(num_steps_, [](int) {});
        continue;
      }
      if (first_row == 0) tiles_[tile].gather_outliers(linear_);
      int8_t* outliers[2] = {tiles_[tile].outliers[0], tiles_[tile].outliers[1]};
      product_of(high_rows, kNumOutliers, outliers, high_, tile).run(1, [](int) {});
    }
    finish_planes(linear_, x_, pair, first_row, num_rows, low_, high_, epilogue_);
  }

 private:
  TileProduct product_of(const int8_t* const (&rows)[2], int64_t ld_rows, int8_t* const (&planes)[2],
                         PlaneSums& sums, int tile) {
    TileProduct product{{rows[0], rows[1]}, ld_rows, {planes[0], planes[1]}, {}};
    for (int plane = 0; plane < 2; ++plane) {
      product.sums[0][plane] = sums[plane] + tile * 16;
      product.sums[1][plane] = sums[plane] + kTileRows * kPair + tile * 16;
    }
    return product;
  }
  // A step ahead of the products, so that unpacking and multiplying overlap.
  void run(const TileProduct& product, int tile, int first_row) {
    if (first_row != 0) return product.run(num_steps_, [](int) {});
    UnpackedTile& unpacked = tiles_[tile];
    unpacked.unpack_step(0);
    product.run(num_steps_, [&](int step) {
      if (step + 1 < num_steps_) unpacked.unpack_step(step + 1);
    });
  }

  const Linear& linear_;
  const QuantizedRows& x_;
  const Epilogue& epilogue_;
  const int num_steps_;
  const bool is_all_high_;
  UnpackedTile tiles_[2];
  alignas(64) PlaneSums low_, high_;
};

template <typename Epilogue>
inline void tile_rows_i4(const Linear& linear, const QuantizedRows& x, int num_rows, int first_pair,
                         int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  TileRows<Epilogue> rows(linear, x, scratch, epilogue);
  // Rows beyond the last are padding up to a whole tile; their sums are not looked at.
  configure_matrix_tiles(num_rows < kTileRows ? num_rows : kTileRows);
  for (int pair = first_pair; pair < end_pair; ++pair) {
    for (int row = 0; row < num_rows; row += kPairRows) {
      rows.multiply(pair, row, num_rows - row < kPairRows ? num_rows - row : kPairRows);
    }
  }
}

}  // namespace slipstream::detail

#endif
