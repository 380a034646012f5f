// Sums over the threads of a warp or block, in an order that is always the same.
#pragma once

#include <cuda_runtime.h>

namespace telar::backend::cuda {

// No initializers: __shared__ variables have none.
struct FloatPair {
  float a, b;
};
__device__ inline FloatPair& operator+=(FloatPair& to, FloatPair from) {
  to.a += from.a;
  to.b += from.b;
  return to;
}

template <typename V>
__device__ V shuffle_xor(V value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
__device__ inline FloatPair shuffle_xor(FloatPair value, int mask) {
  return {shuffle_xor(value.a, mask), shuffle_xor(value.b, mask)};
}

// On every lane the same bits: both sides of each exchange add the same two numbers.
template <typename V>
__device__ V warp_sum(V value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

// Sum over a team of kTeam threads, on each of them, who all call this: a warp, or the block.
template <int kTeam, typename V>
__device__ V team_sum(V value) {
  static_assert(kTeam % 32 == 0);
  value = warp_sum(value);
  if constexpr (kTeam > 32) {
    constexpr int kWarps = kTeam / 32;
    __shared__ V parts[kWarps];
    __syncthreads();  // Those who read the last call's parts are done.
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) value += parts[i];
  }
  return value;
}

inline constexpr int kMaxWarps = 16;  // Of a block that block_sum() takes.

// Sum over a block of whatever size up to kMaxWarps warps, on each thread. Two calls that follow each other have
// different `parts` in shared memory, so that one barrier is enough: who writes parts for the second time is behind the
// barrier of the call between, which others reach only when they have read the first.
template <typename V>
__device__ V block_sum(V value, V (&parts)[kMaxWarps]) {
  value = warp_sum(value);
  if (blockDim.x == 32) return value;
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned part = threadIdx.x % kMaxWarps;
  value = part < blockDim.x / 32 ? parts[part] : V{};
#pragma unroll
  for (int mask = kMaxWarps / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

}  // namespace telar::backend::cuda
