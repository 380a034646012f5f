// The denominator of a softmax, gathered pack by pack beside the maximum that keeps it in range.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cstring>
#include <type_traits>

#include "worker/backend/cuda/fast_math.cuh"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {

// The maximum of some numbers, as log2(e) times it in `exponent`, and the sum of 2^(log2(e) number - exponent). Since
// all use the exponent as it is rounded, its error does not show. It starts far below all, but finite, so that no
// difference is inf - inf; a NaN shows in the sum.
struct MaxSum {
  float exponent = -FLT_MAX / 4;
  float sum = 0.0f;
};

__device__ inline MaxSum combine(MaxSum a, MaxSum b) {
  const float exponent = fmaxf(a.exponent, b.exponent);
  return {exponent, fmaf(a.sum, fast_exp2(a.exponent - exponent), b.sum * fast_exp2(b.exponent - exponent))};
}

// The first `inside` values of a pack, -inf behind them; returns their maximum.
template <typename T, int kN>
__device__ float widen(const Pack<T, kN>& pack, int64_t inside, float (&values)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) values[i] = pack.get(i);
  if (inside < kN) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (i >= inside) values[i] = -INFINITY;
    }
  }
  float maximum = values[0];
#pragma unroll
  for (int i = 1; i < kN; ++i) maximum = fmaxf(maximum, values[i]);
  return maximum;
}

// With values whose maximum is `maximum`. Rounded alike in all kernels.
template <int kN>
__device__ MaxSum absorb(MaxSum all, const float (&values)[kN], float maximum) {
  const float exponent = fmaxf(all.exponent, maximum * kLog2E);
  float sum = __fmul_rn(all.sum, fast_exp2(all.exponent - exponent));
#pragma unroll
  for (int i = 0; i < kN; ++i) sum += fast_exp2(fmaf(values[i], kLog2E, -exponent));
  return {exponent, sum};
}

// The maximum of all values of some packs: of 16 bits two at a time. Passes over NaN.
template <int kCount, typename T, int kN>
__device__ float greatest_of(const Pack<T, kN> (&packs)[kCount]) {
  if constexpr (sizeof(T) == 2) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    static_assert(kN % 2 == 0);
    Pair greatest;
    memcpy(&greatest, &packs[0].values[0], sizeof(Pair));
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
#pragma unroll
      for (int i = p == 0 ? 2 : 0; i < kN; i += 2) {
        Pair pair;
        memcpy(&pair, &packs[p].values[i], sizeof(Pair));
        greatest = __hmax2(greatest, pair);
      }
    }
    return fmaxf(to_float(greatest.x), to_float(greatest.y));
  } else {
    float greatest = packs[0].get(0);
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
#pragma unroll
      for (int i = 0; i < kN; ++i) greatest = fmaxf(greatest, packs[p].get(i));
    }
    return greatest;
  }
}

// All values of some packs at once: one exponent and one rescaling for all, and a sum for each pack on the way, so that
// exponentials don't wait for each other.
template <int kCount, typename T, int kN>
__device__ MaxSum absorb_packs(MaxSum all, const Pack<T, kN> (&packs)[kCount]) {
  const float exponent = fmaxf(all.exponent, greatest_of(packs) * kLog2E);
  float sums[kCount];
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    sums[p] = fast_exp2(fmaf(packs[p].get(0), kLog2E, -exponent));
#pragma unroll
    for (int i = 1; i < kN; ++i) sums[p] += fast_exp2(fmaf(packs[p].get(i), kLog2E, -exponent));
  }
  float sum = __fmul_rn(all.sum, fast_exp2(all.exponent - exponent));
#pragma unroll
  for (int p = 0; p < kCount; ++p) sum += sums[p];
  return {exponent, sum};
}

}  // namespace telar::backend::cuda
