// Attention of a whole batch: threads take items as they become free, and whoever is last merges.
#pragma once

#include "attention.h"
#include "workspace.h"

namespace slipstream {

// One round over all items. Rounds of a batch count from 0 after `Workspace::reserve_attention`.
class AttentionRun {
 public:
  // `output` is [rows][heads][dim].
  AttentionRun(const AttentionInput& input, Workspace& workspace, int round, float* output)
      : in_(input),
        m_(input.model),
        ws_(workspace),
        plan_(workspace.plan),
        round_(round),
        output_(output),
        heads_per_group_(m_.num_heads / m_.num_kv_heads) {}

  // Each thread of the round calls it; it returns when there is nothing left to take.
  void run() {
    auto& counter = ws_.counters[static_cast<size_t>(round_)];
    const auto num_items = static_cast<int>(plan_.items.size());
    int num_configured = 0;
    int item_idx = counter.fetch_add(1);
    while (item_idx < num_items) {
      const AttentionItem& item = plan_.items[static_cast<size_t>(item_idx)];
      // One item ahead.
      item_idx = counter.fetch_add(1);
      Upcoming upcoming;
      if (item_idx < num_items) {
        const AttentionItem& next = plan_.items[static_cast<size_t>(item_idx)];
        upcoming = Upcoming(in_, plan_.groups[static_cast<size_t>(next.group)], next);
      }
      configure(plan_.groups[static_cast<size_t>(item.group)], &num_configured);
      for (int head = item.first_head; head < item.end_head; ++head) {
        attend_head(item, head, upcoming);
      }
    }
  }

 private:
  void configure(const QueryGroup& group, int* num_configured) {
#if defined(__AMX_INT8__)
    const int num_queries = group.num_rows * heads_per_group_;
    if (m_.kv_format == kInt8 && num_queries != *num_configured) {
      configure_attention_tiles(num_queries);
      *num_configured = num_queries;
    }
#else
    (void)group;
    (void)num_configured;
#endif
  }

  Partial* partials_of(int unit, int segment) {
    return ws_.partials.data() +
           (static_cast<int64_t>(unit) * plan_.max_num_segments + segment) * kTileRows;
  }

  void attend_head(const AttentionItem& item, int head, Upcoming& upcoming) {
    const QueryGroup& group = plan_.groups[static_cast<size_t>(item.group)];
    if (plan_.is_split) {
      const int unit = item.group * m_.num_kv_heads + head;
      attend_segment(in_, {&group, head, item.first_segment}, upcoming,
                     partials_of(unit, item.first_segment));
      return finish_segment(group, head, unit);
    }
    Partial merged[kTileRows], next[kTileRows];
    attend_segment(in_, {&group, head, 0}, upcoming, merged);
    for (int segment = 1; segment < item.end_segment; ++segment) {
      attend_segment(in_, {&group, head, segment}, upcoming, next);
      merge_rows(group, segment, merged, next);
    }
    write_rows(group, head, merged);
  }

  // Whoever computes the last segment of a group and head merges them all, in ascending order.
  void finish_segment(const QueryGroup& group, int head, int unit) {
    const int num_segments = num_segments_of(group.end_position - 1);
    auto& num_done = ws_.num_segments_done[static_cast<size_t>(unit)];
    if (num_done.fetch_add(1, std::memory_order_acq_rel) + 1 != (round_ + 1) * num_segments) return;
    Partial* merged = partials_of(unit, 0);
    for (int i = 1; i < num_segments; ++i) merge_rows(group, i, merged, partials_of(unit, i));
    write_rows(group, head, merged);
  }

  void merge_rows(const QueryGroup& group, int segment, Partial* into, const Partial* next) {
    for (int i = 0; i < group.num_rows * heads_per_group_; ++i) {
      const int position = group.first_position + i / heads_per_group_;
      if (segment < num_segments_of(position)) merge(into[i], next[i], m_.head_dim);
    }
  }

  void write_rows(const QueryGroup& group, int kv_head, const Partial* partials) {
    for (int i = 0; i < group.num_rows * heads_per_group_; ++i) {
      const int64_t row = group.first_row + i / heads_per_group_;
      const int head = kv_head * heads_per_group_ + i % heads_per_group_;
      float* y = output_ + (row * m_.num_heads + head) * m_.head_dim;
      const F16 scale = F16::set(1.0f / partials[i].sum);
      for (int d = 0; d < m_.head_dim; d += kLanes) {
        (F16::load(partials[i].values + d) * scale).store(y + d);
      }
    }
  }

  const AttentionInput& in_;
  const Model& m_;
  Workspace& ws_;
  const Plan& plan_;
  const int round_;
  float* const output_;
  const int heads_per_group_;
};

}  // namespace slipstream
