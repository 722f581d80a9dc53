#include "core_ledger.h"

#include <stdexcept>

#include "clock.h"

#if defined(__linux__)
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#endif

namespace slipstream {

#if defined(__linux__)

namespace {

// A neighbour that has not computed for so long lends its core. Longer than the pause between two
// steps of a busy decode worker, shorter than a user notices.
constexpr int64_t kIdleUs = 5'000;
constexpr int64_t kPollNs = 20'000;
constexpr int64_t kLivenessUs = 5'000;
// No step takes so long: whoever holds the core is stuck, and waiting on would spread that.
constexpr int64_t kLongestWaitUs = 5'000'000;

// Processes are known by a byte of the file that they keep locked: it works across containers, and
// the kernel lets go of it when a process dies, however it dies.
struct flock byte_lock(uint32_t process) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(1) << 30 | static_cast<off_t>(process);
  lock.l_len = 1;
  return lock;
}

}  // namespace

CoreLedger::CoreLedger(const char* path) {
  file_ = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file_ < 0) throw std::runtime_error("the ledger of cores can't be opened");
  void* mapped = MAP_FAILED;
  if (ftruncate(file_, sizeof(Ledger)) == 0) {
    mapped = mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  }
  if (mapped == MAP_FAILED) {
    close(file_);
    throw std::runtime_error("the ledger of cores can't be mapped");
  }
  ledger_ = static_cast<Ledger*>(mapped);
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  for (int core = 0; core < kMaxCores && core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) allowed_.push_back(core);
  }
  if (allowed_.empty()) allowed_.push_back(0);
  take_identity();
  take_home();
}

CoreLedger::~CoreLedger() {
  release();
  uint32_t self = self_;
  ledger_->cores[home_].home.compare_exchange_strong(self, 0);
  munmap(ledger_, sizeof(Ledger));
  close(file_);
}

void CoreLedger::take_identity() {
  for (uint32_t process = 1; process < kMaxProcesses; ++process) {
    struct flock lock = byte_lock(process);
    if (fcntl(file_, F_OFD_SETLK, &lock) == 0) {
      self_ = process;
      return;
    }
  }
  throw std::runtime_error("the ledger of cores has no place left");
}

bool CoreLedger::is_alive(uint32_t process) const {
  if (process == self_) return true;
  struct flock lock = byte_lock(process);
  return fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void CoreLedger::take_home() {
  for (const int core : allowed_) {
    auto& home = ledger_->cores[core].home;
    uint32_t before = home.load();
    if (before != 0 && is_alive(before)) continue;
    if (home.compare_exchange_strong(before, self_)) {
      home_ = core;
      return;
    }
  }
  // More processes than cores: some share a home.
  home_ = allowed_[self_ % allowed_.size()];
}

bool CoreLedger::try_take(int core) {
  uint32_t nobody = 0;
  return ledger_->cores[core].user.compare_exchange_strong(nobody, self_);
}

void CoreLedger::take_home_core() {
  if (try_take(home_)) return;
  Core& core = ledger_->cores[home_];
  core.wanted.fetch_add(1);
  const int64_t started = now_us();
  int64_t last_look = started;
  while (!try_take(home_)) {
    const timespec pause = {0, kPollNs};
    nanosleep(&pause, nullptr);
    const int64_t now = now_us();
    if (now - last_look < kLivenessUs) continue;
    last_look = now;
    uint32_t user = core.user.load();
    if (user != 0 && (!is_alive(user) || now - started > kLongestWaitUs)) {
      core.user.compare_exchange_strong(user, 0);
    }
  }
  core.wanted.fetch_sub(1);
}

bool CoreLedger::is_idle(const Core& core) const {
  if (core.user.load() != 0 || core.wanted.load() != 0) return false;
  const uint32_t home = core.home.load();
  return home == 0 || now_us() - core.last_used_us.load() > kIdleUs || !is_alive(home);
}

const std::vector<int>& CoreLedger::acquire(int max_num_cores) {
  taken_.clear();
  take_home_core();
  taken_.push_back(home_);
  for (const int core : allowed_) {
    if (static_cast<int>(taken_.size()) >= max_num_cores) break;
    if (core != home_ && is_idle(ledger_->cores[core]) && try_take(core)) taken_.push_back(core);
  }
  return taken_;
}

void CoreLedger::release() {
  if (taken_.empty()) return;
  ledger_->cores[home_].last_used_us.store(now_us());
  for (const int core : taken_) {
    uint32_t self = self_;
    ledger_->cores[core].user.compare_exchange_strong(self, 0);
  }
  taken_.clear();
}

#else

CoreLedger::CoreLedger(const char*) { throw std::runtime_error("cores are shared on Linux only"); }
CoreLedger::~CoreLedger() = default;
const std::vector<int>& CoreLedger::acquire(int) { return taken_; }
void CoreLedger::release() {}

#endif

}  // namespace slipstream
