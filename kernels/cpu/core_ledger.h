// Which cores of the host compute a step: shared by the processes that map one ledger file.
//
// Every process has a home core, which it always gets; it may borrow the home of a neighbour that has
// been idle for a while, for one step. So there are never more computing threads than cores, and a
// process alone has all of them. The number of threads does not change results.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace slipstream {

class CoreLedger {
 public:
  // Maps (and makes) the ledger at `path`. Throws std::runtime_error where that can't be done.
  explicit CoreLedger(const char* path);
  ~CoreLedger();
  CoreLedger(const CoreLedger&) = delete;
  CoreLedger& operator=(const CoreLedger&) = delete;

  // Take the home core and up to `max_num_cores` - 1 idle ones. Waits while a neighbour uses the home
  // core for its step. Returns the cores, home first.
  const std::vector<int>& acquire(int max_num_cores);
  void release();

 private:
  static constexpr int kMaxCores = 512;
  static constexpr int kMaxProcesses = 4096;

  struct alignas(64) Core {
    std::atomic<uint32_t> user;    // process that computes on it, 0 for none
    std::atomic<uint32_t> home;    // process whose home it is
    std::atomic<uint32_t> wanted;  // processes that wait for it
    std::atomic<int64_t> last_used_us;  // by its home process
  };
  struct Ledger {
    Core cores[kMaxCores];
  };

  void take_identity();
  void take_home();
  bool is_alive(uint32_t process) const;
  bool try_take(int core);
  void take_home_core();
  bool is_idle(const Core& core) const;

  int file_ = -1;
  Ledger* ledger_ = nullptr;
  uint32_t self_ = 0;
  int home_ = 0;
  std::vector<int> allowed_;  // cores that this process may run on
  std::vector<int> taken_;
};

}  // namespace slipstream
