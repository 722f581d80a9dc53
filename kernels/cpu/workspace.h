// Buffers of a step, grown to the largest batch seen and then reused.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention.h"
#include "model.h"
#include "plan.h"

namespace slipstream {

// 64-byte aligned memory that is zero when new.
template <typename T>
class Buffer {
 public:
  T* data() { return data_.get(); }
  void reserve(size_t count) {
    if (count <= count_) return;
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
    count_ = count;
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t count_ = 0;
};

// Activations as a linear takes them: floats, or planes of int8.
struct Activations {
  Buffer<float> floats;
  Buffer<int8_t> low;
  Buffer<int8_t> high;
  Buffer<float> scales;

  void reserve(int num_rows, int k) {
    // Whole tile pairs: what lies beyond the rows is computed and not looked at.
    const size_t rows = (static_cast<size_t>(num_rows) + 31) / 32 * 32;
    floats.reserve(rows * static_cast<size_t>(k));
    low.reserve(rows * static_cast<size_t>(k));
    high.reserve(rows * kNumOutliers);
    scales.reserve(rows);
  }
  QuantizedRows quantized() { return {low.data(), high.data(), scales.data()}; }
};

struct Workspace {
  Buffer<float> residual;   // [rows][hidden]
  Buffer<float> qkv;        // [rows][q, k, v heads][dim]
  Buffer<float> attention;  // [rows][heads][dim]
  Buffer<float> gated;      // [rows][intermediate]
  Buffer<int8_t> query_planes;  // [group][kv head][2 planes][queries][dim]
  Buffer<float> query_scales;   // [group][kv head][queries]
  Buffer<Partial> partials;                // split attention: [group][kv head][segment][16]
  Activations shared;                      // input of the next linear, for all threads
  std::vector<Activations> own;            // the same for few rows: every thread makes its own
  std::vector<std::vector<float>> scratch;  // a row, each thread
  Plan plan;
  std::unique_ptr<std::atomic<int>[]> num_segments_done;  // [group][KV head], all layers so far
  size_t num_units = 0;
  std::unique_ptr<std::atomic<int>[]> counters;  // items taken, each layer
  int num_counters = 0;

  void reserve_partials(size_t num_units_wanted, int max_num_segments) {
    partials.reserve(num_units_wanted * static_cast<size_t>(max_num_segments) * kTileRows);
    if (num_units < num_units_wanted) {
      num_segments_done = std::make_unique<std::atomic<int>[]>(num_units_wanted);
      num_units = num_units_wanted;
    }
    for (size_t unit = 0; unit < num_units_wanted; ++unit) num_segments_done[unit] = 0;
  }
};

}  // namespace slipstream
