// Work sharing, and the memory that kernels keep between calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "worker/backend/dtype.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace telar::backend::cpu {

#ifdef __SANITIZE_THREAD__
// GCC's OpenMP runtime isn't instrumented; these tell ThreadSanitizer of its fork and join.
inline char region_edge;
inline void acquire_region() { __tsan_acquire(&region_edge); }
inline void release_region() { __tsan_release(&region_edge); }
#else
inline void acquire_region() {}
inline void release_region() {}
#endif

// body(i) for i in [0, n), each once, on at most omp_get_max_threads() threads, done on return. A kernel cuts its work
// into pieces whose size does not depend on the number of threads, and bodies write disjoint memory: so the result
// doesn't depend on it either. `body` must not throw.
template <typename Body>
void parallel_for(int64_t n, const Body& body) {
  if (n <= 1) {
    if (n == 1) body(0);
    return;
  }
  release_region();
#pragma omp parallel
  {
    acquire_region();
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < n; ++i) body(i);
    release_region();
  }
  acquire_region();
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

// Calls visit(T{}) with the storage type of a float tensor. `dtype` was checked: f32 or bf16.
template <typename Visit>
auto with_type(DType dtype, const Visit& visit) {
  return dtype == DType::kBF16 ? visit(Bf16()) : visit(float());
}

}  // namespace telar::backend::cpu
