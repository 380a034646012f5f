// Work sharing, and the memory that kernels keep between calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "worker/backend/dtype.h"

#ifdef __SANITIZE_THREAD__
#include <omp.h>

#include <atomic>
#include <thread>
#include <vector>
#endif

namespace telar::backend::cpu {

// body(i) for i in [0, n), each once, on at most omp_get_max_threads() threads, done on return. A kernel cuts its work
// into pieces whose size does not depend on the number of threads, and bodies write disjoint memory: so the result
// doesn't depend on it either. `body` must not throw.
template <typename Body>
void parallel_for(int64_t n, const Body& body) {
  if (n <= 1) {
    if (n == 1) body(0);
    return;
  }
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer doesn't see how GCC's OpenMP forks and joins; it does see threads.
  std::atomic<int64_t> next = 0;
  const auto take = [&] {
    for (int64_t i = next++; i < n; i = next++) body(i);
  };
  std::vector<std::thread> team;
  for (int64_t i = std::min<int64_t>(n, omp_get_max_threads()); i > 1; --i) team.emplace_back(take);
  take();
  for (std::thread& thread : team) thread.join();
#else
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < n; ++i) body(i);
#endif
}

// body(first, last) for pieces of [0, n) of at most `piece` elements.
template <typename Body>
void parallel_pieces(int64_t n, int64_t piece, const Body& body) {
  parallel_for((n + piece - 1) / piece, [&](int64_t i) { body(i * piece, std::min(n, (i + 1) * piece)); });
}

inline constexpr int64_t kElementPiece = 16384;  // Of elementwise work: some microseconds, a few pages.
inline constexpr int64_t kRowPiece = 32;         // Of sums over rows: one partial sum each.

// Scratch of the calling thread: one buffer a use, 64-byte aligned, kept and only ever grown. The contents live until
// the thread's next call for the same use.
enum class Scratch : uint8_t { kWeights, kPartials, kRows, kAttention, kLeft, kRight, kBias, kResult, kOneDnn, kCount };
std::byte* scratch_bytes(Scratch use, size_t bytes);
template <typename T = float>
T* scratch(Scratch use, int64_t elements) {
  return reinterpret_cast<T*>(scratch_bytes(use, static_cast<size_t>(elements) * sizeof(T)));
}

// Calls visit(T{}) with the storage type of a float tensor. `dtype` was checked: f32, bf16 or f16.
template <typename Visit>
auto with_type(DType dtype, const Visit& visit) {
  if (dtype == DType::kBF16) return visit(Bf16());
  return dtype == DType::kF16 ? visit(F16()) : visit(float());
}

}  // namespace telar::backend::cpu
