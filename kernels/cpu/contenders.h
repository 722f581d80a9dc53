// The contenders of a draw: whose score plus Gumbel noise may be the largest. The sampler computes
// theirs exactly, so that its tokens don't depend on these functions being there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "largest.h"
#include "nucleus.h"
#include "wide_lanes.h"

namespace slipstream {

template <typename Word>
inline Word mix(Word word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// The generator of `gumbel_noise` in noise.py, at one seed and output position.
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
