#include "thread_pool.h"

#include <sched.h>
#include <time.h>

#include <cassert>

namespace slipstream {

namespace {

// A barrier between two spinning threads costs 0.3 us; a neighbour that was descheduled takes
// milliseconds. After this many looks the core is offered to whoever else wants it.
constexpr int kSpins = 20000;
// And after so many offers it sleeps in between.
constexpr int kYields = 2000;
constexpr int64_t kSleepNs = 50'000;

// The time that this thread has had a core.
int64_t on_core_us() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000 + t.tv_nsec / 1000;
}

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

template <typename Condition>
void spin_until(const Condition& is_met) {
  for (int looks = 0; !is_met(); ++looks) {
    if (looks < kSpins) {
      pause();
    } else if (looks < kSpins + kYields) {
      sched_yield();
    } else {
      const timespec nap = {0, kSleepNs};
      nanosleep(&nap, nullptr);
    }
  }
}

}  // namespace

void Barrier::wait() {
  if (num_threads_ == 1) return;
  const int phase = phase_.load(std::memory_order_relaxed);
  if (num_waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    num_waiting_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
}

ThreadPool::ThreadPool(int num_threads) : pinned_to_(static_cast<size_t>(num_threads), -1) {
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { serve(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  started_.notify_all();
  for (auto& thread : threads_) thread.join();
}

// Threads stay where they computed last; moving one is a system call.
void ThreadPool::move_to_core(int thread_idx) {
  if (cores_ == nullptr) return;
  const auto idx = static_cast<size_t>(thread_idx);
  const int core = (*cores_)[idx];
  if (pinned_to_[idx] == core) return;
  pinned_to_[idx] = core;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  // Where it is forbidden, the threads compute wherever the system puts them.
  sched_setaffinity(0, sizeof set, &set);
#endif
}

void ThreadPool::run(int num_threads, const Work& work, const std::vector<int>* cores) {
  const int num_used = num_threads < this->num_threads() ? num_threads : this->num_threads();
  assert(num_used > 0 && "the caller computes too");
  assert((cores == nullptr || static_cast<int>(cores->size()) >= num_used) && "a thread has a core");
  barrier_.reset(num_used);
  if (num_used == 1) {
    cores_ = cores;
    compute(work, 0);
    return;
  }
  num_running_.store(num_used - 1, std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    cores_ = cores;
    num_wanted_ = num_used;
    ++step_;
  }
  started_.notify_all();
  compute(work, 0);
  spin_until([&] { return num_running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::compute(const Work& work, int thread_idx) {
  move_to_core(thread_idx);
  const int64_t before_us = on_core_us();
  work(thread_idx);
  on_cores_us_.fetch_add(on_core_us() - before_us, std::memory_order_relaxed);
}

void ThreadPool::serve(int thread_idx) {
  long last_step = 0;
  while (true) {
    const Work* work = nullptr;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      started_.wait(lock, [&] { return is_ending_ || step_ != last_step; });
      if (is_ending_) return;
      last_step = step_;
      if (thread_idx < num_wanted_) work = work_;
    }
    if (work != nullptr) {
      compute(*work, thread_idx);
      num_running_.fetch_sub(1, std::memory_order_release);
    }
  }
}

}  // namespace slipstream
