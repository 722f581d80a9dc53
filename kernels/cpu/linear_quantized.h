// y = x W^T for rows of integers and a matrix of any integer format.
#pragma once

#include <cassert>

#include "linear.h"
#include "linear_int4.h"

namespace slipstream {

// What a thread needs to multiply with a matrix.
inline size_t linear_scratch_bytes(const Linear& linear) {
  return linear.format == kInt4 ? int4_scratch_bytes(linear.k) : 0;
}

// `scratch` is the thread's own, `linear_scratch_bytes`, on a cache line.
template <typename Epilogue>
inline void linear_quantized(const Linear& linear, const QuantizedRows& x, int num_rows,
                             int first_pair, int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  assert(!is_float(linear.format) && "weights are integers");
  if (linear.format == kInt4) {
    linear_int4(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
  } else {
    linear_int8(linear, x, num_rows, first_pair, end_pair, epilogue);
  }
}

}  // namespace slipstream
