// How many threads a step is worth while programs that know nothing of the ledger want the cores too.
//
// A step of n threads that took T and had cores for H, all together, had H / T of the n cores that it
// was promised. Where the system gives one to somebody else, each of the step's hundred barriers waits
// until it comes back: two threads may take ten times as long as one. So no more are taken than there
// were cores.
#pragma once

#include <cstdint>

namespace slipstream {

class Crowd {
 public:
  // Returns the most threads that are worth taking now, of `max_num_threads`.
  int num_threads(int max_num_threads, int64_t now_us) const;

  // Take in a step that has just ended: its threads, T and H in microseconds.
  void saw(int num_threads, int64_t step_us, int64_t on_cores_us, int64_t now_us);

 private:
  // Steps are judged together until they took so long: a hiccup is no crowd.
  static constexpr int64_t kJudgedUs = 200'000;
  // Where the fewer threads have their cores, whether the crowd is still there shows only with more:
  // looking may cost one part in so many.
  static constexpr int64_t kLook = 16;
  // Threads that are held up for less than one part in so many do more good than harm.
  static constexpr int64_t kSlack = 4;

  int num_judged_threads_ = 0;
  int64_t judged_us_ = 0;
  int64_t on_cores_us_ = 0;
  int max_num_threads_ = 0;  // until then
  int64_t until_us_ = 0;
};

}  // namespace slipstream
