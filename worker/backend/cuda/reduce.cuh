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

// Sum over a team of kTeam threads, on each of them: a warp, or the whole block, which then has kTeam threads and calls
// this together.
template <int kTeam, typename V>
__device__ V team_sum(V value) {
  static_assert(kTeam % 32 == 0);
  value = warp_sum(value);
  if constexpr (kTeam > 32) {
    __shared__ V parts[kTeam / 32];
    __syncthreads();  // Those who read the last call's parts are done.
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
#pragma unroll
    for (int i = 1; i < kTeam / 32; ++i) value += parts[i];
  }
  return value;
}

}  // namespace telar::backend::cuda
