// LayerNorm (kCentred) and RMSNorm, which is the same without mean and bias: rows held in registers by teams of
// threads.
//
// A team is one or two warps, or a block of 128, 256 or 512 threads, of which each holds at most kTeamPacks packs of
// the row, 32 values in the widest team; kPacks, which may be fewer, is what a kernel is compiled for, so that narrow
// rows leave registers to more threads. The backward goes over many rows with each team, so that a column's part of the
// weights' gradients stays in one thread's registers; each block then writes its partial sums, and add_partials() adds
// them in order.
#pragma once

#include "worker/backend/cuda/async_copy.cuh"
#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {

inline constexpr int kTeamPacks = 4;
inline constexpr int kWarpPacks = 3;  // Of a team of one warp, for which the compiler runs out of registers sooner.
inline constexpr int kWidestTeam = 512;
template <typename T>
inline constexpr int kWidestPacks = 32 / kPackSize<T>;
inline constexpr int kNormThreads = 512;  // That a multiprocessor holds at once: 128 registers each.
inline constexpr int64_t kWidestNorm = kWidestTeam * 32;
constexpr int norm_threads(int team) { return team > 128 ? team : 128; }
constexpr int norm_teams(int team) { return norm_threads(team) / team; }

template <bool kCentred, int kTeam, int kPacks, bool kVector, typename T, typename W>
__global__ void __launch_bounds__(norm_threads(kTeam))
    norm_kernel(const T* residual, const T* delta, const W* __restrict__ weight, const W* __restrict__ bias,
                float epsilon, int64_t rows, int width, T* sum, T* y, float* mean_out, float* rstd_out) {
  constexpr int kN = kPackSize<T>, kTeams = norm_teams(kTeam);
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
      float sums[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) sums[i] = x[p].get(i) + added[p].get(i);
      x[p] = rounded<T>(sums);
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
    mean = team_sum<kTeam, kTeams>(total) / static_cast<float>(width);
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
  const float rstd = 1.0f / sqrtf(team_sum<kTeam, kTeams>(squares) / static_cast<float>(width) + epsilon);
  if (member == 0) {
    if constexpr (kCentred) mean_out[row] = mean;
    rstd_out[row] = rstd;
  }

#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto w = load_pack<kVector, kN>(weight, at(p), width);
    Pack<W, kN> b{};
    if (kCentred && bias != nullptr) b = load_pack<kVector, kN>(bias, at(p), width);
    float results[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) results[i] = fmaf((x[p].get(i) - mean) * rstd, w.get(i), b.get(i));
    store_pack<kVector, kN>(y + start, at(p), width, rounded<T>(results));
  }
}

// Makes the compiler load again what lies there, which it would else keep in registers for all rows.
template <typename W>
__device__ const W* forget(const W* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// The rows that a thread of the backward works on: this one, and the next on its way. Each thread has packs of dy, x
// and dx for itself, in shared memory where they are aligned, and else reads them where they are.
template <int kTeam, int kPacks, bool kVector, typename T>
struct NormRows {
  static constexpr int kN = kPackSize<T>, kThreads = norm_threads(kTeam);
  static constexpr int kTensors = 3;
  static constexpr bool kStaged = kVector && kPacks * kThreads <= kTeamPacks * kWidestTeam;
  static constexpr size_t kStageBytes = kStaged ? 2 * kTensors * kPacks * kThreads * sizeof(uint4) : 0;

  const T* tensors[kTensors];  // dy, x, dx.
  int64_t rows;
  int width, member;
  uint4* stages;
  int stage = 0;
  int64_t start = 0;

  __device__ int at(int pack) const { return (pack * kTeam + member) * kN; }
  __device__ uint4* slot(int of_stage, int tensor, int pack) const {
    return stages + ((of_stage * kTensors + tensor) * kPacks + pack) * kThreads + threadIdx.x;
  }
  // Nothing where there is no such row, which counts as a group all the same.
  __device__ void fetch(int to_stage, int64_t row) const {
    if constexpr (kStaged) {
      if (row < rows) {
#pragma unroll
        for (int t = 0; t < kTensors; ++t) {
          const T* from = tensors[t] + row * width;
#pragma unroll
          for (int p = 0; p < kPacks; ++p) {
            const bool is_there = at(p) < width;
            copy_pack_async(slot(to_stage, t, p), from + (is_there ? at(p) : 0), is_there);
          }
        }
      }
      commit_copies();
    }
  }
  __device__ Pack<T, kN> read(int tensor, int pack) const {
    if constexpr (kStaged) {
      const uint4 word = *slot(stage, tensor, pack);
      Pack<T, kN> value;
      memcpy(&value, &word, sizeof(word));
      return value;
    } else {
      return load_pack<kVector, kN>(tensors[tensor] + start, at(pack), width);
    }
  }
};

// Shared memory of a block: the stages, and where it adds up its teams' sums after that.
template <int kTeam, int kPacks, bool kVector, typename T>
constexpr size_t norm_backward_bytes() {
  constexpr size_t kStages = NormRows<kTeam, kPacks, kVector, T>::kStageBytes;
  constexpr size_t kColumns = norm_teams(kTeam) > 1 ? norm_threads(kTeam) * kPacks * kPackSize<T> * sizeof(float) : 0;
  return kStages > kColumns ? kStages : kColumns;
}

// With n = (x - mean) rstd and g = dy weight: dx += rstd (g - mean(g) - n mean(g n)); dweight += dy n; dbias += dy.
// RMSNorm has no mean and no mean(g). partials: [gridDim.x, kSums, width], dweight's and then dbias's.
template <bool kCentred, int kTeam, int kPacks, bool kVector, typename T, typename W>
__global__ void __launch_bounds__(norm_threads(kTeam), kVector ? kNormThreads / norm_threads(kTeam) : 1)
    norm_backward_kernel(const T* dy, const T* x, const W* __restrict__ weight, const float* __restrict__ means,
                         const float* __restrict__ rstds, int64_t rows, int width, T* dx, float* partials) {
  constexpr int kN = kPackSize<T>, kThreads = norm_threads(kTeam), kTeams = norm_teams(kTeam);
  constexpr int kSums = kCentred ? 2 : 1;
  extern __shared__ uint4 shared[];
  const int team = threadIdx.x / kTeam;
  NormRows<kTeam, kPacks, kVector, T> own{{dy, x, dx}, rows, width, static_cast<int>(threadIdx.x) % kTeam, shared};
  float sums[kSums][kPacks][kN] = {};

  const int64_t stride = static_cast<int64_t>(gridDim.x) * kTeams;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTeams + team;
  float next_mean = 0.0f, next_rstd = 0.0f;
  const auto fetch = [&](int stage, int64_t row) {
    own.fetch(stage, row);
    if (row < rows) {
      if constexpr (kCentred) next_mean = means[row];
      next_rstd = rstds[row];
    }
  };
  fetch(0, first);
  for (int64_t row = first; row < rows; row += stride) {
    const float mean = next_mean, rstd = next_rstd;
    own.start = row * width;
    fetch(1 - own.stage, row + stride);
    if constexpr (own.kStaged) wait_for_copies();
    FloatPair total{0.0f, 0.0f};  // Of g and of g n; where the row has ended, d is 0.
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto w = load_pack<kVector, kN>(forget(weight), own.at(p), width);
      const auto gradient = own.read(0, p), value = own.read(1, p);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float n = (value.get(i) - mean) * rstd, g = gradient.get(i) * w.get(i);
        sums[0][p][i] = fmaf(gradient.get(i), n, sums[0][p][i]);
        if constexpr (kCentred) sums[1][p][i] += gradient.get(i);
        total.a += g;
        total.b = fmaf(g, n, total.b);
      }
    }
    total = team_sum<kTeam, kTeams>(total);
    asm volatile("" ::: "memory");  // What was read is read again rather than kept.
    const float mean_g = kCentred ? total.a / static_cast<float>(width) : 0.0f;
    const float mean_gn = total.b / static_cast<float>(width);
#pragma unroll 2
    for (int p = 0; p < kPacks; ++p) {
      const auto w = load_pack<kVector, kN>(forget(weight), own.at(p), width);
      const auto gradient = own.read(0, p), value = own.read(1, p), before = own.read(2, p);
      float results[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float n = (value.get(i) - mean) * rstd, g = gradient.get(i) * w.get(i);
        results[i] = fmaf(rstd, g - mean_g - n * mean_gn, before.get(i));
      }
      store_pack<kVector, kN>(dx + own.start, own.at(p), width, rounded<T>(results));
    }
    own.stage = 1 - own.stage;
  }

  // The copies are done: the last row that there was has been waited for.
  float* columns = reinterpret_cast<float*>(shared);
  constexpr int kColumns = kTeam * kPacks * kN;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    float* out = partials + (static_cast<int64_t>(blockIdx.x) * kSums + s) * width;
    if constexpr (kTeams > 1) __syncthreads();  // The stages, or the other sums, are not read any more.
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if constexpr (kTeams > 1) {
          columns[team * kColumns + own.at(p) + i] = sums[s][p][i];
        } else if (own.at(p) + i < width) {
          out[own.at(p) + i] = sums[s][p][i];
        }
      }
    }
    if constexpr (kTeams > 1) {
      __syncthreads();
      for (int c = threadIdx.x; c < width; c += kThreads) {
        float sum = 0.0f;
        for (int t = 0; t < kTeams; ++t) sum += columns[t * kColumns + c];
        out[c] = sum;
      }
    }
  }
}

}  // namespace telar::backend::cuda
