// The forward of LayerNorm (kCentred) and RMSNorm by blocks that have two rows each.
#pragma once

#include "worker/backend/cuda/greatest.cuh"
#include "worker/backend/cuda/norm_kernels.cuh"
#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {

// As norm_kernel without kWarp, for two rows a block that are read and summed at once: half the barriers, and a weight
// that is on its way beside the rows serves both. The same bits.
template <bool kCentred, int kPacks, bool kVector, typename T, typename W>
__global__ void __launch_bounds__(kNormThreads)
    norm_pair_kernel(const T* residual, const T* delta, const W* __restrict__ weight, const W* __restrict__ bias,
                     float epsilon, int64_t rows, int width, T* sum, T* y, float* mean_out, float* rstd_out,
                     float* amax) {
  constexpr int kN = kPackSize<T>, kRows = 2;
  __shared__ FloatPair parts[2][kMaxWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows, start = first * width;
  const auto at = [](int p) { return static_cast<int>(p * blockDim.x + threadIdx.x) * kN; };
  const int end[kRows] = {width, first + 1 < rows ? width : 0};  // A row that is not there has no columns.

  Pack<T, kN> x[kRows][kPacks], added[kRows][kPacks];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      x[r][p] = load_pack<kVector, kN>(residual + start + r * width, at(p), end[r]);
      if (delta != nullptr) added[r][p] = load_pack<kVector, kN>(delta + start + r * width, at(p), end[r]);
    }
  }
  Pack<W, kN> w[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) w[p] = load_pack<kVector, kN>(weight, at(p), width);
  if (delta != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float sums[kN];
#pragma unroll
        for (int i = 0; i < kN; ++i) sums[i] = x[r][p].get(i) + added[r][p].get(i);
        x[r][p] = rounded<T>(sums);
        store_pack<kVector, kN>(sum + start + r * width, at(p), end[r], x[r][p]);
      }
    }
  }

  float mean[kRows] = {}, squares[kRows] = {};
  if constexpr (kCentred) {
    float total[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
#pragma unroll
        for (int i = 0; i < kN; ++i) total[r] += x[r][p].get(i);
      }
    }
    const FloatPair all = block_sum(FloatPair{total[0], total[1]}, parts[0]);
    mean[0] = all.a / static_cast<float>(width);
    mean[1] = all.b / static_cast<float>(width);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float off = at(p) + i < width ? x[r][p].get(i) - mean[r] : 0.0f;
        squares[r] = fmaf(off, off, squares[r]);
      }
    }
  }
  const FloatPair all = block_sum(FloatPair{squares[0], squares[1]}, parts[1]);
  const float rstd[kRows] = {1.0f / sqrtf(all.a / static_cast<float>(width) + epsilon),
                             1.0f / sqrtf(all.b / static_cast<float>(width) + epsilon)};
  if (threadIdx.x == 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (end[r] == 0) continue;
      if constexpr (kCentred) mean_out[first + r] = mean[r];
      rstd_out[first + r] = rstd[r];
    }
  }

  Greatest<T> greatest;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    Pack<W, kN> b{};
    if (kCentred && bias != nullptr) b = load_pack<kVector, kN>(bias, at(p), width);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float results[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) results[i] = fmaf((x[r][p].get(i) - mean[r]) * rstd[r], w[p].get(i), b.get(i));
      const auto stored = rounded<T>(results);
      store_pack<kVector, kN>(y + start + r * width, at(p), end[r], stored);
      if (amax != nullptr && at(p) < end[r]) greatest.take(stored);
    }
  }
  if (amax != nullptr) greatest.publish(amax);
}

}  // namespace telar::backend::cuda
