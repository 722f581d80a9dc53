// y = x W^T for rows of integers and a matrix of any integer format.
#pragma once

#include <cassert>

#include "linear_int4.h"
#include "linear_int8.h"

namespace slipstream {

// What a thread needs to multiply so many rows with a matrix.
inline size_t linear_scratch_bytes(const Linear& linear, int num_rows) {
  if (is_float(linear.format)) return 0;
  return linear.format == kInt4 ? int4_scratch_bytes(linear, num_rows) : int8_scratch_bytes(num_rows);
}

// `scratch` is the thread's own, `linear_scratch_bytes`, on a cache line.
template <typename Epilogue>
inline void linear_quantized(const Linear& linear, const QuantizedRows& x, int num_rows,
                             int first_pair, int end_pair, int8_t* scratch, const Epilogue& epilogue) {
  assert(!is_float(linear.format) && "weights are integers");
  if (linear.format == kInt4) {
    linear_int4(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
  } else {
    linear_int8(linear, x, num_rows, first_pair, end_pair, scratch, epilogue);
  }
}

}  // namespace slipstream
