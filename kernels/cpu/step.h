// The fused step: one call runs a packed batch of rows through all layers.
#pragma once

#include "model.h"
#include "phases.h"
#include "thread_pool.h"
#include "workspace.h"

namespace slipstream {

// Decode rows, verification rows and prompt chunks alike; logits for the rows that are asked for.
// With `cores` given, at most one thread on each of them.
void run_step(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool,
              PhaseClock& clock, const std::vector<int>* cores = nullptr);

}  // namespace slipstream
