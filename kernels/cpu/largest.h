// Passes over a row of logits for its largest values, which are exact at every ISA level.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "vector.h"
#include "vector_math.h"

namespace slipstream {

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

}  // namespace slipstream
