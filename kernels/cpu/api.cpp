// The C interface that `loader.py` calls through ctypes (which releases the GIL).
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>

#include "clock.h"
#include "engine.h"
#include "export.h"
#include "phases.h"
#include "step.h"
#include "unfused.h"

#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

using slipstream::Engine;

// The cores of one step; without a ledger all threads compute, wherever they run.
class Cores {
 public:
  Cores(Engine& engine, int max_num_threads) : engine_(engine) {
    if (engine.ledger == nullptr) return;
    taken_ = &engine.ledger->acquire(engine.crowd.num_threads(max_num_threads, slipstream::now_us()));
    started_us_ = slipstream::now_us();
  }
  ~Cores() {
    if (taken_ == nullptr) return;
    const int64_t ended_us = slipstream::now_us();
    const int64_t on_cores_us = engine_.pool.take_on_cores_us();
    engine_.crowd.saw(static_cast<int>(taken_->size()), ended_us - started_us_, on_cores_us, ended_us);
    engine_.ledger->release();
  }
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;
  const std::vector<int>* taken() const { return taken_; }

 private:
  Engine& engine_;
  const std::vector<int>* taken_ = nullptr;
  int64_t started_us_ = 0;
};

}  // namespace

// The name of the level that this library was compiled for.
SLIPSTREAM_EXPORT const char* slipstream_level() { return SLIPSTREAM_LEVEL; }

// 0 when this process may use what the library was compiled for.
SLIPSTREAM_EXPORT int slipstream_prepare() {
#if defined(__AMX_INT8__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : 1;
#else
  return 0;
#endif
}

SLIPSTREAM_EXPORT void* slipstream_engine_new(int32_t num_threads) {
  try {
    return new Engine(num_threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

SLIPSTREAM_EXPORT void slipstream_engine_free(void* engine) { delete static_cast<Engine*>(engine); }

// Share the host's cores with the processes that name the same file. 0, or 1 where that can't be done.
SLIPSTREAM_EXPORT int slipstream_engine_share_cores(void* engine, const char* path) {
  try {
    static_cast<Engine*>(engine)->ledger = std::make_unique<slipstream::CoreLedger>(path);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

// Free the buffers of past steps; the next one makes those that it needs. Not during a step.
SLIPSTREAM_EXPORT void slipstream_engine_rest(void* engine) {
  static_cast<Engine*>(engine)->workspace = slipstream::Workspace();
}

// Run one step. 0, or 1 when there is no memory for a batch of this size.
SLIPSTREAM_EXPORT int slipstream_step(void* engine, const slipstream::Model* model,
                                      const slipstream::Step* step) {
  try {
    auto* e = static_cast<Engine*>(engine);
    slipstream::PhaseClock clock;
    const Cores cores(*e, std::min(step->num_threads, e->pool.num_threads()));
    clock.lap(slipstream::kCoresPhase);
    const auto run = step->is_unfused ? slipstream::run_unfused_step : slipstream::run_step;
    run(*model, *step, e->workspace, e->pool, clock, cores.taken());
    // The first thread has waited for the others, which were multiplying as well.
    clock.stop(step->phase_ns, slipstream::kWeightsPhase);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

// Sizes of the structs here, for the other side to compare.
SLIPSTREAM_EXPORT void slipstream_sizes(int64_t* sizes) {
  sizes[0] = sizeof(slipstream::Linear);
  sizes[1] = sizeof(slipstream::Layer);
  sizes[2] = sizeof(slipstream::Model);
  sizes[3] = sizeof(slipstream::Sequence);
  sizes[4] = sizeof(slipstream::Step);
}
