// What a handle of the C interface stands for: threads, buffers, and the cores that are shared.
#pragma once

#include <memory>

#include "core_ledger.h"
#include "crowd.h"
#include "thread_pool.h"
#include "workspace.h"

namespace slipstream {

struct Engine {
  Workspace workspace;
  ThreadPool pool;
  std::unique_ptr<CoreLedger> ledger;  // none: all threads, wherever they run
  Crowd crowd;                         // looked at where cores are shared
  explicit Engine(int num_threads) : pool(num_threads) {}
};

}  // namespace slipstream
