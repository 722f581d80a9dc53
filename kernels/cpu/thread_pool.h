// The one compute pool of a process: threads spin within a step only, and sleep between steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

// All threads of a step meet here; none goes on before the last has come.
class Barrier {
 public:
  void reset(int num_threads) {
    num_threads_ = num_threads;
    num_waiting_.store(0, std::memory_order_relaxed);
  }
  void wait();

 private:
  int num_threads_ = 1;
  std::atomic<int> num_waiting_{0};
  std::atomic<int> phase_{0};
};

class ThreadPool {
 public:
  using Work = std::function<void(int thread_idx)>;

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Run `work` once on each of the first `num_threads` threads, the caller being number 0. With
  // `cores` given, thread i computes on core cores[i].
  void run(int num_threads, const Work& work, const std::vector<int>* cores = nullptr);

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
  Barrier& barrier() { return barrier_; }

  // How long the threads have had cores, all together, since it was asked last; microseconds.
  int64_t take_on_cores_us() { return on_cores_us_.exchange(0, std::memory_order_relaxed); }

 private:
  void serve(int thread_idx);
  void compute(const Work& work, int thread_idx);
  void move_to_core(int thread_idx);

  std::vector<std::thread> threads_;
  std::vector<int> pinned_to_;  // each thread's core, -1 for any
  Barrier barrier_;
  std::mutex mutex_;
  std::condition_variable started_;
  const Work* work_ = nullptr;
  const std::vector<int>* cores_ = nullptr;
  std::atomic<int> num_running_{0};
  std::atomic<int64_t> on_cores_us_{0};
  int num_wanted_ = 0;
  long step_ = 0;
  bool is_ending_ = false;
};

}  // namespace slipstream
