// What the time of a step goes into, by the clock of the thread that called for it.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#endif

namespace slipstream {

// The places of `Step::phase_ns`. A phase has the waiting for other threads that ends it.
enum Phase : int {
  kOtherPhase,    // embedding, norms, quantizing, and making the step's plan
  kWeightsPhase,  // multiplying with matrices, each of which is read once
  kKvPhase,       // rotating and writing keys and values, and attention, which reads them
  kCoresPhase,    // waiting for cores that other processes of the host have
  kNumPhases
};

inline int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// A stop watch with a hand for each phase. Looked at some hundred times a step: so it counts the
// processor's ticks, which take 10 ns to read, and finds out how long one was when it stops.
class PhaseClock {
 public:
  PhaseClock() : began_ns_(now_ns()), began_(ticks()), since_(began_) {}

  // What has passed since the last call was of this phase.
  void lap(Phase phase) {
    const int64_t now = ticks();
    spent_[phase] += now - since_;
    since_ = now;
  }

  // Add what was spent to `phase_ns`; what no lap has told is the step's last phase.
  void stop(int64_t* phase_ns, Phase last) {
    lap(last);
    const int64_t all = since_ - began_;
    if (phase_ns == nullptr || all <= 0) return;
    const double ns_each = static_cast<double>(now_ns() - began_ns_) / static_cast<double>(all);
    for (int phase = 0; phase < kNumPhases; ++phase) {
      phase_ns[phase] += static_cast<int64_t>(static_cast<double>(spent_[phase]) * ns_each);
    }
  }

 private:
  static int64_t ticks() {
#if defined(__x86_64__) || defined(__i386__)
    return static_cast<int64_t>(__rdtsc());
#else
    return now_ns();
#endif
  }

  int64_t began_ns_;
  int64_t began_;
  int64_t since_;
  int64_t spent_[kNumPhases] = {};
};

}  // namespace slipstream
