// Buffers of a step, grown to the largest batch seen and then reused.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention.h"
#include "linear_quantized.h"
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

  void reserve(int num_rows, int k, bool is_of_floats, int num_outliers) {
    // Whole tile pairs: what lies beyond the rows is computed and not looked at.
    const size_t rows = (static_cast<size_t>(num_rows) + 31) / 32 * 32;
    if (is_of_floats) return floats.reserve(rows * static_cast<size_t>(k));
    low.reserve(rows * static_cast<size_t>(k));
    high.reserve(rows * static_cast<size_t>(num_outliers));
    scales.reserve(rows);
  }
  QuantizedRows quantized() { return {low.data(), high.data(), scales.data()}; }
};

struct Workspace {
  Buffer<float> residual;   // [rows][hidden]
  Buffer<float> normed;     // [rows][hidden]; unfused steps only
  Buffer<float> projected;  // [rows][outputs]; unfused steps only
  Buffer<float> qkv;        // [rows][q, k, v heads][dim]
  Buffer<float> attention;  // [rows][heads][dim]
  Buffer<float> gated;      // [rows][intermediate]
  Buffer<int8_t> query_planes;  // [group][kv head][2 planes][queries][dim]
  Buffer<float> query_scales;   // [group][kv head][queries]
  Buffer<Partial> partials;                // split attention: [group][kv head][segment][16]
  Activations shared;                      // input of the next linear, for all threads
  std::vector<Activations> own;            // the same for few rows: every thread makes its own
  std::vector<std::vector<float>> scratch;  // a row, each thread
  std::vector<Buffer<int8_t>> linear_scratch;  // see `linear_scratch_bytes`, each thread
  Plan plan;
  std::unique_ptr<std::atomic<int>[]> num_segments_done;  // [group][KV head], all rounds so far
  size_t num_units = 0;
  std::unique_ptr<std::atomic<int>[]> counters;  // items taken, each round
  int num_counters = 0;

  // For the rows of a step; a thread makes inputs of its own for up to `num_own_rows` of them.
  void reserve(const Model& model, int num_rows, int num_own_rows, int num_threads) {
    const auto rows = static_cast<size_t>(num_rows);
    const auto heads = static_cast<size_t>(model.num_heads * model.head_dim);
    const auto kv_heads = static_cast<size_t>(model.num_kv_heads * model.head_dim);
    residual.reserve(rows * static_cast<size_t>(model.hidden));
    qkv.reserve(rows * (heads + 2 * kv_heads));
    attention.reserve(rows * heads);
    gated.reserve(rows * static_cast<size_t>(model.intermediate));
    query_planes.reserve(2 * rows * heads);
    query_scales.reserve(rows * static_cast<size_t>(model.num_heads));
    const int widest = std::max({model.hidden, model.intermediate, static_cast<int>(heads)});
    int num_outliers = 0;
    size_t linear_scratch_size = 0;
    each_linear(model, [&](const Linear& linear) {
      num_outliers = std::max(num_outliers, static_cast<int>(linear.num_outliers));
      linear_scratch_size = std::max(linear_scratch_size, linear_scratch_bytes(linear, num_rows));
    });
    const bool is_of_floats = is_float(model.head.format);
    shared.reserve(num_rows, widest, is_of_floats, num_outliers);
    own.resize(std::max(own.size(), static_cast<size_t>(num_threads)));
    for (auto& each : own) {
      each.reserve(std::min(num_rows, num_own_rows), widest, is_of_floats, num_outliers);
    }
    reserve_scratch(num_threads, 2 * widest);
    reserve_linear_scratch(num_threads, linear_scratch_size);
  }

  void reserve_linear_scratch(int num_threads, size_t num_bytes) {
    linear_scratch.resize(std::max(linear_scratch.size(), static_cast<size_t>(num_threads)));
    for (auto& each : linear_scratch) each.reserve(num_bytes);
  }

  void reserve_scratch(int num_threads, int num_floats) {
    const auto count = static_cast<size_t>(num_floats);
    scratch.resize(std::max(scratch.size(), static_cast<size_t>(num_threads)));
    for (auto& each : scratch) each.resize(std::max(each.size(), count));
  }

  // For `num_rounds` times attention, which is once a layer.
  void reserve_attention(const Model& model, int num_rounds) {
    if (plan.is_split) reserve_partials(plan.num_units(model), plan.max_num_segments);
    if (num_counters < num_rounds) {
      counters = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(num_rounds));
      num_counters = num_rounds;
    }
    for (int i = 0; i < num_rounds; ++i) counters[static_cast<size_t>(i)] = 0;
  }

 private:
  template <typename Visit>
  static void each_linear(const Model& model, const Visit& visit) {
    for (int i = 0; i < model.num_layers; ++i) {
      const Layer& layer = model.layers[i];
      for (const Linear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) visit(*linear);
    }
    visit(model.head);
  }
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
