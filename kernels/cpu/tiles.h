// The matrix tiles of AMX: their shapes, and what sanitizers are told of their memory.
#pragma once

#if defined(__AMX_INT8__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace slipstream {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

inline void set_tile(TileConfig& config, int tile, int rows, int bytes) {
  config.rows[tile] = static_cast<uint8_t>(rows);
  config.column_bytes[tile] = static_cast<uint16_t>(bytes);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

// What each thread has loaded last.
inline thread_local TileConfig loaded_config;

// A tile goes past the compiler, which checks no row of it. So its rows are copied as well, before.
inline void read_rows(int tile, const void* first, int64_t stride) {
  for (int row = 0; row < loaded_config.rows[tile]; ++row) {
    uint8_t copy[64];
    std::memcpy(copy, static_cast<const uint8_t*>(first) + row * stride,
                loaded_config.column_bytes[tile]);
    asm volatile("" ::"r"(copy) : "memory");
  }
}
inline void write_rows(int tile, void* first, int64_t stride) {
  for (int row = 0; row < loaded_config.rows[tile]; ++row) {
    std::memset(static_cast<uint8_t*>(first) + row * stride, 0, loaded_config.column_bytes[tile]);
  }
}

#undef _tile_loadd
#undef _tile_stored
#define _tile_loadd(tile, first, stride)        \
  do {                                          \
    slipstream::read_rows(tile, first, stride); \
    _tile_loadd_internal(tile, first, stride);  \
  } while (false)
#define _tile_stored(tile, first, stride)        \
  do {                                           \
    slipstream::write_rows(tile, first, stride); \
    _tile_stored_internal(tile, first, stride);  \
  } while (false)

#endif

inline void load_config(const TileConfig& config) {
  // GCC may drop the stores before: it does not know that ldtilecfg reads them.
  asm volatile("" ::: "memory");
  _tile_loadconfig(&config);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  loaded_config = config;
#endif
}

}  // namespace slipstream

#endif
