#include "crowd.h"

#include <algorithm>

#include "export.h"

namespace slipstream {

int Crowd::num_threads(int max_num_threads, int64_t now_us) const {
  return now_us < until_us_ ? std::min(max_num_threads, max_num_threads_) : max_num_threads;
}

void Crowd::saw(int num_threads, int64_t step_us, int64_t on_cores_us, int64_t now_us) {
  if (num_threads != num_judged_threads_) {
    num_judged_threads_ = num_threads;
    judged_us_ = on_cores_us_ = 0;
  }
  judged_us_ += step_us;
  on_cores_us_ += on_cores_us;
  if (judged_us_ < kJudgedUs) return;
  const auto num_cores = static_cast<int>((on_cores_us_ + num_threads * judged_us_ / kSlack) / judged_us_);
  if (num_cores < num_threads) {
    max_num_threads_ = std::max(1, num_cores);
    until_us_ = now_us + kLook * judged_us_;
  }
  judged_us_ = on_cores_us_ = 0;
}

}  // namespace slipstream

// For tests: give a new Crowd steps one after the other, `times[i]` being T and H of step i for a thread
// (so many H as there are threads); returns the threads that were worthwhile before each.
SLIPSTREAM_EXPORT void slipstream_crowd(int32_t max_num_threads, int32_t num_steps,
                                        const int64_t (*times)[2], int32_t* num_threads) {
  slipstream::Crowd crowd;
  int64_t now_us = 0;
  for (int i = 0; i < num_steps; ++i) {
    num_threads[i] = crowd.num_threads(max_num_threads, now_us);
    now_us += times[i][0];
    crowd.saw(num_threads[i], times[i][0], num_threads[i] * times[i][1], now_us);
  }
}
