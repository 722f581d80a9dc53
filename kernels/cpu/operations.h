// The operations of a step one at a time, over rows in memory, with the kernels of the fused step.
//
// Each thread calls an operation with its share and computes that part; together the parts are the
// operation. No part reads what another writes, so threads don't wait for each other within one.
#pragma once

#include "attention_types.h"
#include "dot_i8.h"
#include "heads.h"
#include "model.h"
#include "plan.h"

namespace slipstream::operations {

struct Share {
  int thread, num_threads;
  Range of(int count) const { return share(count, thread, num_threads); }
};

// y [rows][hidden]
void embed(Share share, const Model& model, const int32_t* token_ids, int num_rows, float* y);

// y[i] = x[rows[i]], n floats each.
void select(Share share, const float* x, const int32_t* rows, int num_rows, int n, float* y);

// x and y [rows][n]
void rms_norm(Share share, const float* x, int num_rows, const float* weight, int n, float epsilon,
              float* y);

// x [rows][k] as the matrix takes it: reordered or rotated. `scratch` holds k floats for this thread.
void quantize(Share share, const Linear& linear, const float* x, int num_rows, float* scratch,
              const QuantizedRows& y);

// y [rows][num_columns], the first outputs of the matrix; its last ones may be padding.
void linear_float32(Share share, const Linear& linear, const float* x, int num_rows, int num_columns,
                    float* y);
void linear_bf16(Share share, const Linear& linear, const float* x, int num_rows, int num_columns,
                 float* y);
void linear_quantized(Share share, const Linear& linear, const QuantizedRows& x, int num_rows,
                      int8_t* scratch, int num_columns, float* y);

// x [rows][2 n] in tiles of 16: gate, up, gate, up; y [rows][n]
void silu_and_multiply(Share share, const float* x, int num_rows, int n, float* y);

// y += x, both [rows][n]
void add(Share share, const float* x, int num_rows, int n, float* y);

// Rotary embedding of a projection qkv [rows][heads of q, k, v][dim]; keys and values go into the
// cache, queries to where attention finds them.
void finish_heads(Share share, const Model& model, const Step& step, const Plan& plan, int layer_idx,
                  const float* qkv, const Queries& to);

// Attention is `AttentionRun`.

}  // namespace slipstream::operations
