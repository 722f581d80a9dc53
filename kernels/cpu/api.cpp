// The C interface that `loader.py` calls through ctypes (which releases the GIL).
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "step.h"

#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(_WIN32)
#define SLIPSTREAM_EXPORT extern "C" __declspec(dllexport)
#else
#define SLIPSTREAM_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

struct Engine {
  slipstream::Workspace workspace;
  slipstream::ThreadPool pool;
  explicit Engine(int num_threads) : pool(num_threads) {}
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

// Run one step. 0, or 1 when there is no memory for a batch of this size.
SLIPSTREAM_EXPORT int slipstream_step(void* engine, const slipstream::Model* model,
                                      const slipstream::Step* step) {
  try {
    auto* e = static_cast<Engine*>(engine);
    slipstream::run_step(*model, *step, e->workspace, e->pool);
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
