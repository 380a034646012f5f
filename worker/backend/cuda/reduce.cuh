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

// Waits for the other threads of the team, of which a block has kTeams.
template <int kTeam, int kTeams>
__device__ void team_barrier() {
  if constexpr (kTeams == 1) {
    __syncthreads();
  } else {
    static_assert(kTeams <= 15);  // A block has 16 barriers, __syncthreads() is the first.
    asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(threadIdx.x) / kTeam + 1), "n"(kTeam) : "memory");
  }
}

// Sum over a team of kTeam threads, on each of them, who all call this. A block is kTeams teams, which need not call it
// as often as each other.
template <int kTeam, int kTeams = 1, typename V>
__device__ V team_sum(V value) {
  static_assert(kTeam % 32 == 0);
  value = warp_sum(value);
  if constexpr (kTeam > 32) {
    constexpr int kWarps = kTeam / 32;
    __shared__ V parts[kTeams * kWarps];
    const int warp = threadIdx.x / 32, first = warp / kWarps * kWarps;
    team_barrier<kTeam, kTeams>();  // Those who read the last call's parts are done.
    if (threadIdx.x % 32 == 0) parts[warp] = value;
    team_barrier<kTeam, kTeams>();
    value = parts[first];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) value += parts[first + i];
  }
  return value;
}

}  // namespace telar::backend::cuda
