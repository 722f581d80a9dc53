// The fused step: one call runs a packed batch of rows through all layers.
#pragma once

#include "model.h"
#include "thread_pool.h"
#include "workspace.h"

namespace slipstream {

// Decode rows, verification rows and prompt chunks alike; logits for the rows that are asked for.
void run_step(const Model& model, const Step& step, Workspace& workspace, ThreadPool& pool);

}  // namespace slipstream
