// How a batch is taken apart: what each row is, query groups, and items of attention for the threads.
#pragma once

#include <algorithm>
#include <vector>

#include "attention_types.h"
#include "dot_i8.h"

namespace slipstream {

struct Range {
  int first, end;
  int count() const { return end - first; }
};

// A thread's even share of `count` pieces.
inline Range share(int count, int thread, int num_threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

struct Plan {
  std::vector<int32_t> positions;  // of each row
  std::vector<int32_t> row_sequence;
  std::vector<int32_t> row_group;
  std::vector<QueryGroup> groups;
  std::vector<AttentionItem> items;
  int max_num_segments = 1;
  bool is_split = false;  // by segment: partial results are merged by whoever is last

  void make(const Model& model, const Step& step, int num_threads) {
    plan_rows(step, std::max(1, kTileRows / (model.num_heads / model.num_kv_heads)));
    plan_items(model.num_kv_heads, num_threads);
  }
  size_t num_units(const Model& model) const {
    return groups.size() * static_cast<size_t>(model.num_kv_heads);
  }

 private:
  void plan_rows(const Step& step, int rows_per_group) {
    const auto rows = static_cast<size_t>(step.num_rows);
    positions.resize(rows);
    row_sequence.resize(rows);
    row_group.resize(rows);
    groups.clear();
    for (int i = 0; i < step.num_sequences; ++i) {
      const Sequence& sequence = step.sequences[i];
      for (int r = 0; r < sequence.num_rows; r += rows_per_group) {
        const int count = std::min(rows_per_group, sequence.num_rows - r);
        const int position = sequence.num_computed + r;
        for (int j = 0; j < count; ++j) {
          const auto row = static_cast<size_t>(sequence.first_row + r + j);
          positions[row] = position + j;
          row_sequence[row] = i;
          row_group[row] = static_cast<int32_t>(groups.size());
        }
        groups.push_back({i, sequence.first_row + r, count, position, position + count});
      }
    }
  }

  // Few groups are split by segment, and by head where that is not enough, so that every thread has
  // work; many are taken whole.
  void plan_items(int num_kv_heads, int num_threads) {
    max_num_segments = 1;
    int num_segments = 0;
    for (const auto& group : groups) {
      const int of_group = num_segments_of(group.end_position - 1);
      max_num_segments = std::max(max_num_segments, of_group);
      num_segments += of_group;
    }
    const auto num_groups = static_cast<int>(groups.size());
    is_split = num_threads > 1 && max_num_segments > 1 && num_groups < 16 * num_threads;
    const int num_items = is_split ? num_segments : num_groups;
    const int heads_each = num_items < 4 * num_threads ? 1 : num_kv_heads;
    items.clear();
    // The longest contexts come last in a prompt: start with them.
    for (int group = num_groups - 1; group >= 0; --group) {
      const int of_group = num_segments_of(groups[static_cast<size_t>(group)].end_position - 1);
      const int segments_each = is_split ? 1 : of_group;
      for (int segment = 0; segment < of_group; segment += segments_each) {
        for (int head = 0; head < num_kv_heads; head += heads_each) {
          items.push_back({group, head, head + heads_each, segment, segment + segments_each});
        }
      }
    }
  }
};

}  // namespace slipstream
