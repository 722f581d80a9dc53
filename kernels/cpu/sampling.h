// Passes over one row of logits for the sampler. Rows never see each other.
//
// What they return is exact at every ISA level, or a bound: the sampler computes the short rest
// itself, so that its tokens don't depend on these functions being there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "vector.h"

namespace slipstream {

// Lanes of 64 bits, as many as a register holds, and as many lanes of 32 bits.
#if defined(__AVX512F__)
constexpr int kWideLanes = 8;
#elif defined(__AVX2__)
constexpr int kWideLanes = 4;
#else
constexpr int kWideLanes = 2;
#endif
constexpr int kNumWide = kLanes / kWideLanes;
typedef double Doubles __attribute__((vector_size(8 * kWideLanes)));
typedef uint64_t Words __attribute__((vector_size(8 * kWideLanes)));
typedef float NarrowFloats __attribute__((vector_size(4 * kWideLanes)));
typedef int32_t NarrowInts __attribute__((vector_size(4 * kWideLanes)));

// Call for the vectors of a row, with the place of each; the last is filled up with -inf.
template <typename Work>
inline void for_each_vector(const float* row, int64_t size, const Work& work) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) work(row + i, i);
  if (i == size) return;
  float padded[kLanes];
  std::fill_n(padded, kLanes, -std::numeric_limits<float>::infinity());
  std::copy(row + i, row + size, padded);
  work(padded, i);
}

// ---- The largest value.

struct Peak {
  int64_t token_id;
  float logit;
};

// The largest logit, on a tie the one of the lowest id; the first NaN if there is one.
inline Peak find_peak(const float* row, int64_t size) {
  constexpr int64_t kBlock = 4 * kLanes;
  float largest = -std::numeric_limits<float>::infinity();
  int64_t begin = 0, i = 0;  // the first block that holds the largest
  uint32_t nans = 0;
  for (; i + kBlock <= size; i += kBlock) {
    const F16 a = F16::load(row + i), b = F16::load(row + i + kLanes);
    const F16 c = F16::load(row + i + 2 * kLanes), d = F16::load(row + i + 3 * kLanes);
    const F16 top = max(max(a, b), max(c, d));
    nans |= lanes_nan(a, b) | lanes_nan(c, d);
    if (lanes_above(top, F16::set(largest)) != 0) {
      largest = reduce_max(top);
      begin = i;
    }
  }
  for (; i < size; ++i) {
    nans |= row[i] != row[i];
    if (row[i] > largest) {
      largest = row[i];
      begin = i;
    }
  }
  if (nans != 0) {
    const float* nan = std::find_if(row, row + size, [](float x) { return x != x; });
    return {nan - row, *nan};
  }
  return {std::find(row + begin, row + size, largest) - row, largest};
}

// ---- The k largest values.

// Ascending keys are descending values, of equal ones ascending ids.
inline uint64_t rank_key(float value, int64_t token_id) {
  value += 0.0f;  // -0 is no smaller than 0
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t descending = bits >> 31 != 0 ? bits : ~bits & 0x7fffffff;
  return uint64_t{descending} << 32 | static_cast<uint64_t>(token_id);
}

inline F16 block_max(const float* row, int num_vectors) {
  F16 top = F16::load(row);
  for (int i = 1; i < num_vectors; ++i) top = max(top, F16::load(row + i * kLanes));
  return top;
}

// Keys of all that reach the k-th largest maximum of a block: as many blocks have one that does.
template <int kVectors>
void collect_largest(const float* row, int64_t size, int64_t k, std::vector<uint64_t>& keys) {
  constexpr int64_t kBlock = kVectors * kLanes;
  const int64_t num_blocks = size / kBlock;
  std::vector<float> tops(static_cast<size_t>(num_blocks));
  for (int64_t i = 0; i < num_blocks; ++i) {
    tops[static_cast<size_t>(i)] = reduce_max(block_max(row + i * kBlock, kVectors));
  }
  std::vector<float> ranked = tops;
  std::nth_element(ranked.begin(), ranked.begin() + (k - 1), ranked.end(), std::greater<float>());
  const float threshold = ranked[static_cast<size_t>(k - 1)];
  const F16 thresholds = F16::set(threshold);
  for (int64_t i = 0; i < num_blocks; ++i) {
    if (tops[static_cast<size_t>(i)] < threshold) continue;
    for (int64_t j = i * kBlock; j < (i + 1) * kBlock; j += kLanes) {
      uint32_t lanes = lanes_above(thresholds, F16::load(row + j)) ^ 0xffff;
      for (; lanes != 0; lanes &= lanes - 1) {
        const int64_t token_id = j + __builtin_ctz(lanes);
        keys.push_back(rank_key(row[token_id], token_id));
      }
    }
  }
  for (int64_t j = num_blocks * kBlock; j < size; ++j) {
    if (row[j] >= threshold) keys.push_back(rank_key(row[j], j));
  }
}

// The ids of the k largest, largest first, on a tie the lowest id first. No NaN; 0 < k <= size.
inline void find_largest(const float* row, int64_t size, int64_t k, int64_t* token_ids) {
  std::vector<uint64_t> keys;
  if (2 * k <= size / (4 * kLanes)) {
    collect_largest<4>(row, size, k, keys);
  } else if (k <= size / kLanes) {
    collect_largest<1>(row, size, k, keys);
  } else {
    for (int64_t i = 0; i < size; ++i) keys.push_back(rank_key(row[i], i));
  }
  std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
  std::sort(keys.begin(), keys.begin() + k);
  for (int64_t i = 0; i < k; ++i) {
    token_ids[i] = static_cast<int64_t>(keys[static_cast<size_t>(i)] & 0xffffffff);
  }
}

// ---- The sum of exponentials.

constexpr double kLog2E64 = 1.4426950408889634, kLn2 = 0.69314718055994531;
// The polynomial that approximates e^r best in [-ln 2 / 2, ln 2 / 2] (relative error 2e-16).
constexpr double kExp[11] = {0x1.28a2ca617b969p-22, 0x1.72fafebdaf273p-19, 0x1.a019a6611cad5p-16,
                             0x1.a01978b8b3d18p-13, 0x1.6c16c17f46982p-10, 0x1.1111112ddae8bp-7,
                             0x1.55555555520a4p-5,  0x1.555555554b736p-3,  0x1.0000000000005p-1,
                             0x1.000000000001ep+0,  1.0};
constexpr double kSmallestExponent = -700.0;  // below it e^x would be no normal number
// Added to a number, it leaves the nearest whole one in the low bits.
constexpr double kRounder = 0x1.8p52;

// Fused where the processor does it in one instruction.
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

inline Doubles of_all(double x) { return Doubles{} + x; }

// e^x for x up to 0.
inline Doubles exp(Doubles x) {
  x = x < kSmallestExponent ? of_all(kSmallestExponent) : x;
  const Doubles shifted = multiply_add(x, of_all(kLog2E64), of_all(kRounder));
  const Doubles r = multiply_add(of_all(kRounder) - shifted, of_all(kLn2), x);
  Doubles p = of_all(kExp[0]);
#pragma GCC unroll 10
  for (int i = 1; i < 11; ++i) p = multiply_add(p, r, of_all(kExp[i]));
  return p * (Doubles)(((Words)shifted + 1023) << 52);
}

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

// ---- The nucleus: the fewest largest whose weights reach a part of all.

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

// ---- The contenders of a draw: whose score plus Gumbel noise may be the largest.

template <typename Word>
inline Word mix(Word word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// The generator of `gumbel_noise` in sampling.py, at one seed and output position.
class Noise {
 public:
  Noise(uint64_t seed, uint64_t output_position)
      : key_(mix(mix(mix(seed) + (output_position + 1) * kGolden))) {}
  double of(int64_t token_id) const {
    const uint64_t word = mix(key_ + (static_cast<uint64_t>(token_id) + 1) * kGolden);
    return -std::log(-std::log((static_cast<double>(word >> 12) + 0.5) * 0x1p-52));
  }
  // The upper 31 bits of 1 - uniform, for 16 ids in a row.
  I16 complements(int64_t first_token_id) const {
    const uint64_t first_word = key_ + static_cast<uint64_t>(first_token_id) * kGolden;
    int32_t upper[kLanes];
    for (int i = 0; i < kLanes; i += kWideLanes) {
      Words words;
      std::memcpy(&words, kSteps + i, sizeof words);
      words = ~mix(words + first_word) >> 33;
      const NarrowInts narrow = __builtin_convertvector(words, NarrowInts);
      std::memcpy(upper + i, &narrow, sizeof narrow);
    }
    return I16::load(upper);
  }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  static constexpr uint64_t kSteps[kLanes] = {
      1 * kGolden,  2 * kGolden,  3 * kGolden,  4 * kGolden,  5 * kGolden,  6 * kGolden,
      7 * kGolden,  8 * kGolden,  9 * kGolden,  10 * kGolden, 11 * kGolden, 12 * kGolden,
      13 * kGolden, 14 * kGolden, 15 * kGolden, 16 * kGolden};
  uint64_t key_;
};

// Noise is -log(-log(1 - v)) with v uniform, which is at most -log v. So a token whose score lies
// `gap` below the largest can only reach `best` above the largest where log v <= -gap - best. Few
// can, and theirs are computed.
class Contenders {
 public:
  static constexpr size_t kCapacity = 64;

  Contenders(const Peak& peak, double temperature, const Noise& noise, const Floor& floor)
      : noise_(noise),
        floor_(floor),
        below_floor_(floor.logit - std::max(std::fabs(floor.logit) * 0x1p-20f, 0x1p-100f)),
        maximum_(peak.logit),
        temperature_(temperature),
        bits_per_logit_(static_cast<float>(kBitsPerOctave * kLog2E64 / temperature)) {
    raise(noise.of(peak.token_id));
  }

  // Look at 16 tokens. False when more are as good as each other than can be kept; of others only a
  // few are ever the best so far.
  bool add(const float* logits, int64_t first_token_id) {
    const F16 x = F16::load(logits);
    if (lanes_above(x, F16::set(cut_)) == 0) return true;
    // As numbers, the bits of a float are its logarithm to base 2, at most 0.09 too small.
    const I16 logarithms = as_bits(to_float(noise_.complements(first_token_id)));
    const F16 gaps = x - F16::set(static_cast<float>(maximum_));
    const F16 limits = fma(gaps, F16::set(bits_per_logit_), F16::set(limit_));
    for (uint32_t lanes = lanes_above(limits, to_float(logarithms)); lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      if (!add_one(logits[lane], first_token_id + lane)) return false;
    }
    return true;
  }

  // Write the ids of those that nobody beat, ascending, and return how many.
  int64_t take(int64_t* token_ids) const {
    int64_t count = 0;
    for (size_t i = 0; i < count_; ++i) {
      if (!is_beaten(kept_[i].value)) token_ids[count++] = kept_[i].token_id;
    }
    return count;
  }

 private:
  // Roundings of scores, here and in numpy, are far below it while scores are at most 2^20.
  static constexpr double kMargin = 1e-6;
  // Complements are multiples of 2^-31 here, floats have a bias of 127 and 23 bits of mantissa.
  static constexpr double kBias = 31 + 127, kBitsPerOctave = 1 << 23;
  static constexpr double kSlack = 1e-3;  // in octaves; float32 arithmetic needs a thirtieth of it
  // A complement is at least 2^-53; another octave is for the rounding of scores to float32.
  static constexpr double kMaxOctaves = 53 + 1;

  struct Contender {
    int64_t token_id;
    double value;
  };

  bool add_one(float logit, int64_t token_id) {
    if (floor_.is_above(logit, token_id)) return true;
    const double value = (logit - maximum_) / temperature_ + noise_.of(token_id);
    if (is_beaten(value)) return true;
    if (count_ == kCapacity) return false;
    kept_[count_++] = {token_id, value};
    if (value > best_) raise(value);
    return true;
  }

  bool is_beaten(double value) const { return value < best_ - kMargin; }

  void raise(double best) {
    best_ = best;
    limit_ = static_cast<float>(kBitsPerOctave * (kBias + kSlack - best * kLog2E64));
    cut_ = static_cast<float>(maximum_ + (best - kMaxOctaves * kLn2) * temperature_);
    cut_ = std::max(cut_, below_floor_);
  }

  Noise noise_;
  Floor floor_;
  float below_floor_;  // by so much that rounding counts for nothing
  double maximum_, temperature_;
  float bits_per_logit_;
  double best_;        // above the largest score
  float limit_, cut_;  // of logarithms, and of logits that need no look at their noise
  size_t count_ = 0;
  Contender kept_[kCapacity];
};

}  // namespace slipstream
