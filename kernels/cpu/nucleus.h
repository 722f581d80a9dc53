// The sum of a row's weights, and the nucleus: the fewest largest whose weights reach a part of all.
//
// What they return is within a bound of the exact number: the sampler computes the short rest itself,
// so that its tokens don't depend on these functions being there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "largest.h"
#include "wide_lanes.h"

namespace slipstream {

// A value's weight is e^((value - maximum) / temperature).
struct Weighing {
  double maximum, inverse_temperature;

  // Add the weights of 16 values to 16 sums, and write them if they are wanted.
  void add(const float* values, Doubles (&sums)[kNumWide], double* weights) const {
#pragma GCC unroll 8
    for (int i = 0; i < kNumWide; ++i) {
      NarrowFloats loaded;
      std::memcpy(&loaded, values + i * kWideLanes, sizeof loaded);
      const Doubles x = (__builtin_convertvector(loaded, Doubles) - maximum) * inverse_temperature;
      const Doubles weight = exp(x);
      sums[i] += weight;
      if (weights != nullptr) std::memcpy(weights + i * kWideLanes, &weight, sizeof weight);
    }
  }
};

constexpr int64_t kWeighedAtOnce = 256;

// Sum of weights, pairwise above blocks of 256 values: a weight takes part in so few additions that
// their roundings stay below 2^-48 of the sum. `row_passes.py` counts on it.
// `weights`, if there, has room for whole vectors.
inline double total_weight(const float* row, int64_t size, const Weighing& weighing,
                           double* weights = nullptr) {
  if (size > kWeighedAtOnce) {
    const int64_t num_blocks = (size + kWeighedAtOnce - 1) / kWeighedAtOnce;
    const int64_t half = num_blocks / 2 * kWeighedAtOnce;
    double* more = weights != nullptr ? weights + half : nullptr;
    return total_weight(row, half, weighing, weights) +
           total_weight(row + half, size - half, weighing, more);
  }
  Doubles sums[kNumWide] = {};
  for_each_vector(row, size, [&](const float* values, int64_t i) {
    weighing.add(values, sums, weights != nullptr ? weights + i : nullptr);
  });
  double lanes[kLanes];
  std::memcpy(lanes, sums, sizeof lanes);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// The last token of those that stay in the race, by descending logit and ascending id.
struct Floor {
  float logit;
  int64_t token_id;
  bool is_above(float other, int64_t other_id) const {
    return other < logit || (other == logit && other_id > token_id);
  }
};

class Nucleus {
 public:
  Nucleus(const float* row, int64_t size, double maximum, double temperature)
      : row_(row),
        size_(size),
        maximum_(maximum),
        temperature_(temperature),
        weights_(new double[static_cast<size_t>((size + kLanes - 1) / kLanes * kLanes)]) {
    total_ = total_weight(row, size, {maximum, 1.0 / temperature}, weights_.get());
  }

  // False where sums that differ by `error` of themselves, as well as by the roundings of as many
  // additions as they take, could end it elsewhere.
  bool find(double top_p, double error, Floor* floor) {
    const double wanted = top_p * total_;
    // Weights so small that all of them together would lie behind the end.
    const double negligible = 0.5 * (1.0 - top_p) * total_ / static_cast<double>(size_);
    const double lowest = maximum_ + temperature_ * std::log(negligible);
    below_ = F16::set(static_cast<float>(lowest));
    bins_per_logit_ = F16::set(static_cast<float>(kNumBins / (maximum_ - lowest)));
    fill_bins();
    const int bin = first_bin_reaching(wanted);
    if (bin == kNumBins) return false;
    rank(bin);
    for (const auto& [key, weight] : ranked_) {
      const double before = sum_;
      sum_ += weight;
      ++count_;
      if (sum_ < wanted) continue;
      const double num_additions = static_cast<double>(2 * count_ + kNumBins);
      const double margin = wanted * (error + num_additions * 0x1p-53);
      floor->token_id = static_cast<int64_t>(key & 0xffffffff);
      floor->logit = row_[floor->token_id];
      return sum_ - wanted > margin && (count_ == 1 || wanted - before > margin);
    }
    return false;
  }

 private:
  static constexpr int kNumBins = 1024;  // of equal width, from the largest logit down

  F16 bins_of(F16 x) const {
    const F16 bins = (F16::set(static_cast<float>(maximum_)) - x) * bins_per_logit_;
    return round_to_whole(min(bins, F16::set(kNumBins - 1)));
  }

  void fill_bins() {
    for_each_vector(row_, size_, [&](const float* values, int64_t first) {
      const F16 x = F16::load(values);
      uint32_t lanes = lanes_above(x, below_);
      if (lanes == 0) return;
      int32_t bins[kLanes];
      round_to_int(bins_of(x)).store(bins);
      for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        mass_[bins[lane]] += weights_[static_cast<size_t>(first + lane)];
      }
    });
  }

  int first_bin_reaching(double wanted) {
    int bin = 0;
    while (bin < kNumBins && sum_ + mass_[bin] < wanted) sum_ += mass_[bin++];
    return bin;
  }

  // Count what is in front of a bin and rank what is in it.
  void rank(int bin) {
    const F16 begin = F16::set(static_cast<float>(bin) - 0.5f);
    const F16 end = F16::set(static_cast<float>(bin) + 0.5f);
    for_each_vector(row_, size_, [&](const float* values, int64_t first) {
      const F16 x = F16::load(values);
      uint32_t lanes = lanes_above(x, below_);
      if (lanes == 0) return;
      const F16 bins = bins_of(x);
      count_ += __builtin_popcount(lanes & lanes_above(begin, bins));
      lanes &= lanes_above(bins, begin) & lanes_above(end, bins);
      for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        ranked_.emplace_back(rank_key(values[lane], first + lane),
                             weights_[static_cast<size_t>(first + lane)]);
      }
    });
    std::sort(ranked_.begin(), ranked_.end());
  }

  const float* row_;
  int64_t size_;
  double maximum_, temperature_, total_;
  std::unique_ptr<double[]> weights_;
  F16 below_, bins_per_logit_;
  double mass_[kNumBins] = {};
  std::vector<std::pair<uint64_t, double>> ranked_;
  double sum_ = 0;     // of the largest so far
  int64_t count_ = 0;  // of them
};

}  // namespace slipstream
