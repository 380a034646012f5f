// LayerNorm (kCentred) and RMSNorm, which is the same without mean and bias: rows held in registers by teams of
// threads.
//
// A team is a warp, or a block of 128 or 512 threads, of which each holds 32 values of the row: rows up to 1024, 4096
// or 16384 columns. The backward goes over many rows with each team, so that a column's part of the weights' gradients
// stays in one thread's registers; each block then writes its partial sums, and add_partials() adds them in order.
#pragma once

#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {

inline constexpr int kRowValues = 32;
inline constexpr int64_t kWidestNorm = 512 * kRowValues;
constexpr int norm_threads(int team) { return team == 32 ? 256 : team; }

template <bool kCentred, int kTeam, bool kVector, typename T, typename W>
__global__ void __launch_bounds__(norm_threads(kTeam))
    norm_kernel(const T* residual, const T* delta, const W* __restrict__ weight, const W* __restrict__ bias,
                float epsilon, int64_t rows, int width, T* sum, T* y, float* mean_out, float* rstd_out) {
  constexpr int kN = kPackSize<T>, kPacks = kRowValues / kN, kTeams = norm_threads(kTeam) / kTeam;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kTeams + threadIdx.x / kTeam;
  if (row >= rows) return;  // A whole team.
  const int member = threadIdx.x % kTeam;
  const auto at = [member](int p) { return (p * kTeam + member) * kN; };
  const int64_t start = row * width;

  Pack<T, kN> x[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) x[p] = load_pack<kVector, kN>(residual + start, at(p), width);
  if (delta != nullptr) {
    Pack<T, kN> added[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) added[p] = load_pack<kVector, kN>(delta + start, at(p), width);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      // What is normed is the sum as stored, because the backward sees that one.
#pragma unroll
      for (int i = 0; i < kN; ++i) x[p].set(i, x[p].get(i) + added[p].get(i));
      store_pack<kVector, kN>(sum + start, at(p), width, x[p]);
    }
  }

  float mean = 0.0f;
  if constexpr (kCentred) {
    float total = 0.0f;  // Values past the end of the row are zeros.
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kN; ++i) total += x[p].get(i);
    }
    mean = team_sum<kTeam>(total) / static_cast<float>(width);
  }
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float off = at(p) + i < width ? x[p].get(i) - mean : 0.0f;
      squares = fmaf(off, off, squares);
    }
  }
  const float rstd = 1.0f / sqrtf(team_sum<kTeam>(squares) / static_cast<float>(width) + epsilon);
  if (member == 0) {
    if constexpr (kCentred) mean_out[row] = mean;
    rstd_out[row] = rstd;
  }

#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto w = load_pack<kVector, kN>(weight, at(p), width);
    Pack<W, kN> b{};
    if (kCentred && bias != nullptr) b = load_pack<kVector, kN>(bias, at(p), width);
    Pack<T, kN> result;
#pragma unroll
    for (int i = 0; i < kN; ++i) result.set(i, (x[p].get(i) - mean) * rstd * w.get(i) + b.get(i));
    store_pack<kVector, kN>(y + start, at(p), width, result);
  }
}

// With n = (x - mean) rstd and g = dy weight: dx += rstd (g - mean(g) - n mean(g n)); dweight += dy n; dbias += dy.
// RMSNorm has no mean and no mean(g). partials: [gridDim.x, kSums, width], dweight's and then dbias's.
template <bool kCentred, int kTeam, bool kVector, typename T, typename W>
__global__ void __launch_bounds__(norm_threads(kTeam))
    norm_backward_kernel(const T* dy, const T* x, const W* __restrict__ weight, const float* __restrict__ means,
                         const float* __restrict__ rstds, int64_t rows, int width, T* dx, float* partials) {
  constexpr int kN = kPackSize<T>, kPacks = kRowValues / kN, kThreads = norm_threads(kTeam), kTeams = kThreads / kTeam;
  constexpr int kSums = kCentred ? 2 : 1;
  const int team = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  const auto at = [member](int p) { return (p * kTeam + member) * kN; };
  float sums[kSums][kPacks][kN] = {};

  const int64_t stride = static_cast<int64_t>(gridDim.x) * kTeams;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kTeams + team; row < rows; row += stride) {
    const int64_t start = row * width;
    Pack<T, kN> d[kPacks], v[kPacks], old[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) d[p] = load_pack<kVector, kN>(dy + start, at(p), width);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) v[p] = load_pack<kVector, kN>(x + start, at(p), width);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) old[p] = load_pack<kVector, kN>(dx + start, at(p), width);
    const float mean = kCentred ? means[row] : 0.0f, rstd = rstds[row];
    FloatPair total{0.0f, 0.0f};  // Of g and of g n; where the row has ended, d is 0.
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto w = load_pack<kVector, kN>(weight, at(p), width);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float n = (v[p].get(i) - mean) * rstd, g = d[p].get(i) * w.get(i);
        sums[0][p][i] += d[p].get(i) * n;
        if constexpr (kCentred) sums[1][p][i] += d[p].get(i);
        total += FloatPair{g, g * n};
      }
    }
    total = team_sum<kTeam>(total);
    const float mean_g = kCentred ? total.a / static_cast<float>(width) : 0.0f;
    const float mean_gn = total.b / static_cast<float>(width);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto w = load_pack<kVector, kN>(weight, at(p), width);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float n = (v[p].get(i) - mean) * rstd, g = d[p].get(i) * w.get(i);
        old[p].set(i, old[p].get(i) + rstd * (g - mean_g - n * mean_gn));
      }
      store_pack<kVector, kN>(dx + start, at(p), width, old[p]);
    }
  }

  __shared__ float columns[kTeams][kTeams > 1 ? kTeam * kRowValues : 1];
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    float* out = partials + (static_cast<int64_t>(blockIdx.x) * kSums + s) * width;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if constexpr (kTeams > 1) {
          columns[team][at(p) + i] = sums[s][p][i];
        } else if (at(p) + i < width) {
          out[at(p) + i] = sums[s][p][i];
        }
      }
    }
    if constexpr (kTeams > 1) {
      __syncthreads();
      for (int c = threadIdx.x; c < width; c += kThreads) {
        float sum = 0.0f;
        for (int t = 0; t < kTeams; ++t) sum += columns[t][c];
        out[c] = sum;
      }
      __syncthreads();
    }
  }
}

}  // namespace telar::backend::cuda
