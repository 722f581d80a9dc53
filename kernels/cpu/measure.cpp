// What this machine can do at most, measured: bytes read a second, multiply-adds a second.
//
// `machine.py` calls it. Each function takes one sample and returns its seconds. What it computes
// is returned too: the sum of the words read, the number of multiply-adds as their own results count
// it. So nothing can be optimised away, and a test can tell that all of it happened.
#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

#include "dot_i8.h"
#include "export.h"
#include "thread_pool.h"
#include "vector.h"

namespace {

using slipstream::F16;
using slipstream::I16;
using slipstream::kLanes;
using Clock = std::chrono::steady_clock;

constexpr int64_t kLine = 64;  // bytes that memory is read in

// Keeps what is computed of memory inside the loop: to the compiler it may have changed, and so may what
// lies at `p`, though nothing else knows of it.
inline void forget_memory(const void* p = nullptr) { asm volatile("" ::"r"(p) : "memory"); }

struct Machine {
  slipstream::ThreadPool pool;
  explicit Machine(int num_threads) : pool(num_threads) {}
};

// Seconds from all threads standing at the barrier to all being done: starting them costs more
// than a small pass.
template <typename Work>
double seconds_of(Machine& machine, int num_threads, const Work& work) {
  Clock::time_point begin, end;
  machine.pool.run(num_threads, [&](int thread_idx) {
    machine.pool.barrier().wait();
    if (thread_idx == 0) begin = Clock::now();
    work(thread_idx);
    machine.pool.barrier().wait();
    if (thread_idx == 0) end = Clock::now();
  });
  return std::chrono::duration<double>(end - begin).count();
}

// ---- Reading: sums of 64-bit words, a cache line at a time.

#if defined(__AVX512F__)
struct LineSum {
  __m512i words = _mm512_setzero_si512();
  void add(const uint8_t* p) { words = _mm512_add_epi64(words, _mm512_loadu_si512(p)); }
  uint64_t total() const {
    // Not _mm512_reduce_add_epi64: it adds signed numbers, and these wrap.
    alignas(64) uint64_t lanes[8];
    _mm512_store_si512(lanes, words);
    uint64_t sum = 0;
    for (const uint64_t lane : lanes) sum += lane;
    return sum;
  }
};
#elif defined(__AVX2__)
struct LineSum {
  __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
  void add(const uint8_t* p) {
    const auto* halves = reinterpret_cast<const __m256i*>(p);
    low = _mm256_add_epi64(low, _mm256_loadu_si256(halves));
    high = _mm256_add_epi64(high, _mm256_loadu_si256(halves + 1));
  }
  uint64_t total() const {
    alignas(32) uint64_t words[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), _mm256_add_epi64(low, high));
    return words[0] + words[1] + words[2] + words[3];
  }
};
#else
struct LineSum {
  uint64_t words[8] = {};
  void add(const uint8_t* p) {
    uint64_t line[8];
    std::memcpy(line, p, sizeof line);
    for (int i = 0; i < 8; ++i) words[i] += line[i];
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const uint64_t word : words) sum += word;
    return sum;
  }
};
#endif

template <bool kPrefetches>
uint64_t sum_of_lines(const uint8_t* begin, const uint8_t* end, int64_t distance) {
  LineSum first, second, third, fourth;
  const uint8_t* p = begin;
  for (; end - p >= 4 * kLine; p += 4 * kLine) {
    if (kPrefetches) {
      for (int line = 0; line < 4; ++line) __builtin_prefetch(p + distance + line * kLine);
    }
    first.add(p);
    second.add(p + kLine);
    third.add(p + 2 * kLine);
    fourth.add(p + 3 * kLine);
  }
  for (; p < end; p += kLine) first.add(p);
  return first.total() + second.total() + third.total() + fourth.total();
}

// ---- Multiply-adds: many independent sums, so that none waits for the one before.

constexpr int kNumCells = 64;  // of the inputs below: as many bytes as one register or tile row

// One for every factor, zero for every sum. Each sum has memory of its own: the compiler computes once
// what it knows to be equal.
constexpr int kMaxNumSums = 16;
struct Inputs {
  alignas(64) float zeros[kMaxNumSums * kLanes] = {};
  alignas(64) float ones[kLanes];
  alignas(64) int8_t bytes[kMaxNumSums * kNumCells];  // or 16 rows of a tile
  alignas(64) int16_t shorts[kMaxNumSums * kNumCells];
  Inputs() {
    for (float& x : ones) x = 1.0f;
    for (int8_t& x : bytes) x = 1;
    for (int16_t& x : shorts) x = 1;
  }
};

// Members instead of an array: GCC keeps these in registers.
template <typename Sum, int kCount>
struct Sums {
  Sum sum;
  Sums<Sum, kCount - 1> others;
  explicit Sums(const Inputs& inputs) : sum(inputs, kCount - 1), others(inputs) {}
  void add(const typename Sum::Factor& factor) {
    sum.add(factor);
    others.add(factor);
  }
  double total() const { return sum.total() + others.total(); }
};

template <typename Sum>
struct Sums<Sum, 0> {
  explicit Sums(const Inputs&) {}
  void add(const typename Sum::Factor&) {}
  double total() const { return 0; }
};

struct FloatSum {
  struct Factor {
    F16 left, right;
    explicit Factor(const Inputs& inputs)
        : left(F16::load(inputs.ones)), right(F16::load(inputs.ones)) {}
  };
  F16 sum;
  FloatSum(const Inputs& inputs, int idx) : sum(F16::load(inputs.zeros + idx * kLanes)) {}
  void add(const Factor& factor) { sum = slipstream::fma(factor.left, factor.right, sum); }
  double total() const {
    float lanes[kLanes];
    sum.store(lanes);
    double total = 0;
    for (const float lane : lanes) total += lane;
    return total;
  }
};

inline double total_of(const int32_t* lanes, int count) {
  double total = 0;
  for (int i = 0; i < count; ++i) total += lanes[i];
  return total;
}

#if defined(__AVX512VNNI__)
struct ByteSum {
  struct Factor {
    __m512i left, right;
    explicit Factor(const Inputs& inputs)
        : left(_mm512_load_si512(inputs.bytes)), right(_mm512_load_si512(inputs.bytes)) {}
  };
  __m512i sum;
  ByteSum(const Inputs& inputs, int idx) : sum(_mm512_load_si512(inputs.zeros + idx * kLanes)) {}
  void add(const Factor& factor) { sum = _mm512_dpbusd_epi32(sum, factor.left, factor.right); }
  double total() const {
    alignas(64) int32_t lanes[16];
    _mm512_store_si512(lanes, sum);
    return total_of(lanes, 16);
  }
};
#elif defined(__AVX2__)
// Bytes are widened to 16 bits. Each sum has a factor of its own: a product that all share would be
// computed once.
struct ByteSum {
  struct Factor {
    __m256i left;
    explicit Factor(const Inputs& inputs) : left(ByteSum::load(inputs.shorts)) {}
  };
  __m256i sum, right;
  ByteSum(const Inputs& inputs, int idx)
      : sum(load(inputs.zeros + idx * kLanes)), right(load(inputs.shorts + idx * kNumCells)) {}
  void add(const Factor& factor) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(factor.left, right));
  }
  double total() const {
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
    return total_of(lanes, 8);
  }
  static __m256i load(const void* p) {
    return _mm256_load_si256(static_cast<const __m256i*>(p));
  }
};
#else
struct ByteSum {
  struct Factor {
    I16 left;
    explicit Factor(const Inputs& inputs) : left(slipstream::load_bytes(inputs.bytes)) {}
  };
  I16 sum = I16::zero(), right;
  ByteSum(const Inputs& inputs, int idx)
      : right(slipstream::load_bytes(inputs.bytes + idx * kNumCells)) {}
  void add(const Factor& factor) {
    for (int i = 0; i < kLanes; ++i) sum.x[i] += factor.left.x[i] * right.x[i];
  }
  double total() const { return total_of(sum.x, kLanes); }
};
#endif

// As many sums as hide the latency and fit the registers.
#if defined(__AVX512F__)
constexpr int kNumSums = 12;
#elif defined(__AVX2__)
constexpr int kNumSums = 5;
#else
constexpr int kNumSums = 2;
#endif

template <typename Sum>
double multiply_add(const Inputs& inputs, int64_t num_loops) {
  static_assert(kNumSums <= kMaxNumSums, "each has memory of its own");
  forget_memory(&inputs);
  Sums<Sum, kNumSums> sums(inputs);
  for (int64_t loop = 0; loop < num_loops; ++loop) {
    forget_memory(&inputs);
    sums.add(typename Sum::Factor(inputs));
  }
  return sums.total();
}

#if defined(__AMX_INT8__)
double multiply_add_bytes(const Inputs& inputs, int64_t num_loops) {
  alignas(64) int32_t sums[4][16 * 16];
  slipstream::configure_matrix_tiles(slipstream::kTileRows);
  _tile_loadd(4, inputs.bytes, kLine);
  _tile_loadd(5, inputs.bytes, kLine);
  _tile_loadd(6, inputs.bytes, kLine);
  _tile_loadd(7, inputs.bytes, kLine);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t loop = 0; loop < num_loops; ++loop) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, sums[0], kLine);
  _tile_stored(1, sums[1], kLine);
  _tile_stored(2, sums[2], kLine);
  _tile_stored(3, sums[3], kLine);
  _tile_release();
  return total_of(sums[0], 4 * 16 * 16);
}
#else
double multiply_add_bytes(const Inputs& inputs, int64_t num_loops) {
  return multiply_add<ByteSum>(inputs, num_loops);
}
#endif

}  // namespace

SLIPSTREAM_EXPORT void* slipstream_machine_new(int32_t num_threads) {
  try {
    return new Machine(num_threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

SLIPSTREAM_EXPORT void slipstream_machine_free(void* machine) {
  delete static_cast<Machine*>(machine);
}

// Read a buffer once, a part for each thread; its size is a multiple of 64 bytes. `prefetch_bytes`
// is the distance, 0 for none.
SLIPSTREAM_EXPORT double slipstream_read(void* machine, const uint8_t* buffer, int64_t num_bytes,
                                         int32_t num_threads, int64_t prefetch_bytes,
                                         uint64_t* sum) {
  std::vector<uint64_t> parts(static_cast<size_t>(num_threads));
  const int64_t num_lines = num_bytes / kLine;
  const auto read = prefetch_bytes > 0 ? sum_of_lines<true> : sum_of_lines<false>;
  const double seconds =
      seconds_of(*static_cast<Machine*>(machine), num_threads, [&](int thread_idx) {
        const uint8_t* begin = buffer + num_lines * thread_idx / num_threads * kLine;
        const uint8_t* end = buffer + num_lines * (thread_idx + 1) / num_threads * kLine;
        parts[static_cast<size_t>(thread_idx)] = read(begin, end, prefetch_bytes);
      });
  *sum = 0;
  for (const uint64_t part : parts) *sum += part;
  return seconds;
}

// Multiply and add in registers, in int8 with int32 sums or in float32. `num_done` is counted by
// the sums, so no lane may exceed what it holds exactly: 2^24 in float32.
SLIPSTREAM_EXPORT double slipstream_multiply_add(void* machine, int32_t is_int8,
                                                 int32_t num_threads, int64_t num_loops,
                                                 double* num_done) {
  std::vector<double> parts(static_cast<size_t>(num_threads));
  const double seconds =
      seconds_of(*static_cast<Machine*>(machine), num_threads, [&](int thread_idx) {
        const Inputs inputs;
        parts[static_cast<size_t>(thread_idx)] = is_int8 ? multiply_add_bytes(inputs, num_loops)
                                                         : multiply_add<FloatSum>(inputs, num_loops);
      });
  *num_done = 0;
  for (const double part : parts) *num_done += part;
  return seconds;
}
