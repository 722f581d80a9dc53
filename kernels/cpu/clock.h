// The time that only goes on, and is the same for all processes of a host: the ledger holds it.
#pragma once

#include <chrono>
#include <cstdint>

namespace slipstream {

inline int64_t now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace slipstream
