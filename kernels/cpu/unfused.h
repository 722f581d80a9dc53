// The step op by op, as frameworks compute it: what fusing gains is measured against it.
#pragma once

#include "model.h"
#include "phases.h"
#include "thread_pool.h"
#include "workspace.h"

namespace slipstream {

// The bits of `run_step`, by the same kernels. Each operation is a dispatch of its own, takes the whole
// batch and writes its complete result to memory.
void run_unfused_step(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
                      PhaseClock& clock, const std::vector<int>* cores = nullptr);

}  // namespace slipstream
