// LayerNorm (kCentred) and RMSNorm, which is the same without mean and bias: rows held in registers by teams of
// threads.
//
// A team is a block of no more threads than the row has packs for, so that each has kPacks; in the forward of narrow
// rows it is a warp. The backward goes over many rows with each block, so that a column's part of the weights'
// gradients stays in one thread's registers; each block then writes its partial sums, and add_partials() adds them in
// order.
#pragma once

#include "worker/backend/cuda/async_copy.cuh"
#include "worker/backend/cuda/greatest.cuh"
#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {

inline constexpr int kWarpPacks = 3;      // Of a team of one warp.
inline constexpr int kRowsOfBlock = 4;    // By one warp each.
inline constexpr int kNormThreads = 512;  // Of a block, at the most.
inline constexpr int64_t kWidestNorm = kNormThreads * 32;
static_assert(kNormThreads <= 32 * kMaxWarps);

// `sum`, `delta`, `bias` and `amax`, see Greatest, may be null. Block x: row x, or with kWarp the rows from
// kRowsOfBlock x on.
template <bool kCentred, bool kWarp, int kPacks, bool kVector, typename T, typename W>
__global__ void __launch_bounds__(kWarp ? 32 * kRowsOfBlock : kNormThreads)
    norm_kernel(const T* residual, const T* delta, const W* __restrict__ weight, const W* __restrict__ bias,
                float epsilon, int64_t rows, int width, T* sum, T* y, float* mean_out, float* rstd_out, float* amax) {
  constexpr int kN = kPackSize<T>;
  __shared__ float parts[2][kMaxWarps];
  const int team = kWarp ? 32 : blockDim.x, member = threadIdx.x % team;
  const int64_t row = kWarp ? static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32 : blockIdx.x;
  if (row >= rows) return;  // A whole team.
  const auto sum_over = [&](float value, int call) { return kWarp ? warp_sum(value) : block_sum(value, parts[call]); };
  const auto at = [team, member](int p) { return (p * team + member) * kN; };
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
    mean = sum_over(total, 0) / static_cast<float>(width);
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
  const float rstd = 1.0f / sqrtf(sum_over(squares, 1) / static_cast<float>(width) + epsilon);
  if (member == 0) {
    if constexpr (kCentred) mean_out[row] = mean;
    rstd_out[row] = rstd;
  }

  Greatest<T> greatest;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto w = load_pack<kVector, kN>(weight, at(p), width);
    Pack<W, kN> b{};
    if (kCentred && bias != nullptr) b = load_pack<kVector, kN>(bias, at(p), width);
    float results[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) results[i] = fmaf((x[p].get(i) - mean) * rstd, w.get(i), b.get(i));
    const auto stored = rounded<T>(results);
    store_pack<kVector, kN>(y + start, at(p), width, stored);
    if (amax != nullptr && at(p) < width) greatest.take(stored);
  }
  if (amax == nullptr) return;
  if constexpr (kWarp) {
    greatest.publish_warp(amax);
  } else {
    greatest.publish(amax);
  }
}

// Makes the compiler load again what lies there, which it would else keep in registers for all rows.
template <typename W>
__device__ const W* forget(const W* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// The rows that a thread of the backward works on: this one, and the next ones on their way. Each thread has packs of
// dy, x and dx for itself, in shared memory where they are aligned, and else reads them where they are.
template <int kPacks, bool kVector, typename T>
struct NormRows {
  static constexpr int kN = kPackSize<T>;
  static constexpr int kTensors = 3;
  static constexpr bool kStaged = kVector && kPacks <= 4;
  static constexpr int kStages = kPacks <= 2 ? 3 : 2;
  static constexpr size_t kThreadBytes = kStaged ? kStages * kTensors * kPacks * sizeof(uint4) : 0;

  const T* tensors[kTensors];  // dy, x, dx.
  int64_t rows;
  int width;
  uint4* stages;
  int stage = 0;
  int64_t start = 0;

  __device__ int at(int pack) const { return static_cast<int>(pack * blockDim.x + threadIdx.x) * kN; }
  __device__ uint4* slot(int of_stage, int tensor, int pack) const {
    return stages + ((of_stage * kTensors + tensor) * kPacks + pack) * blockDim.x + threadIdx.x;
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
  // The stage before this one is what was read last.
  __device__ void start_row(int64_t row, int64_t stride) {
    start = row * width;
    fetch(stage == 0 ? kStages - 1 : stage - 1, row + (kStages - 1) * stride);
    if constexpr (kStaged) wait_for_copies<kStages - 1>();
  }
  __device__ void end_row() { stage = stage == kStages - 1 ? 0 : stage + 1; }
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

// With n = (x - mean) rstd and g = dy weight: dx += rstd (g - mean(g) - n mean(g n)); dweight += dy n; dbias += dy.
// RMSNorm has no mean and no mean(g). partials: [gridDim.x, kSums, width], dweight's and then dbias's. A block has
// NormRows::kThreadBytes of shared memory a thread.
template <bool kCentred, int kPacks, bool kVector, typename T, typename W>
__global__ void __launch_bounds__(kNormThreads, kPacks == 1 ? 2 : 1)
    norm_backward_kernel(const T* dy, const T* x, const W* __restrict__ weight, const float* __restrict__ means,
                         const float* __restrict__ rstds, int64_t rows, int width, T* dx, float* partials) {
  constexpr int kN = kPackSize<T>, kSums = kCentred ? 2 : 1;
  constexpr bool kKeeps = kPacks == 1;  // Weights, n and g in registers; else they are read and computed again.
  extern __shared__ uint4 shared[];
  __shared__ std::conditional_t<kCentred, FloatPair, float> parts[2][kMaxWarps];
  NormRows<kPacks, kVector, T> own{{dy, x, dx}, rows, width, shared};
  float sums[kSums][kPacks][kN] = {};
  Pack<W, kN> kept{};
  if constexpr (kKeeps) kept = load_pack<kVector, kN>(weight, own.at(0), width);

  const int64_t stride = gridDim.x, first = blockIdx.x;
  float next_mean = 0.0f, next_rstd = 0.0f;
  const auto fetch_statistics = [&](int64_t row) {
    if (row >= rows) return;
    if constexpr (kCentred) next_mean = means[row];
    next_rstd = rstds[row];
  };
  for (int stage = 0; stage < own.kStages - 1; ++stage) own.fetch(stage, first + stage * stride);
  fetch_statistics(first);
  int call = 0;
  for (int64_t row = first; row < rows; row += stride) {
    const float mean = next_mean, rstd = next_rstd;
    fetch_statistics(row + stride);
    own.start_row(row, stride);
    float n[kN], g[kN];  // Of a pack; where the row has ended, dy is 0.
    const auto compute = [&](int p, const Pack<T, kN>& gradient) {
      const auto value = own.read(1, p);
      const auto w = kKeeps ? kept : load_pack<kVector, kN>(forget(weight), own.at(p), width);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        n[i] = (value.get(i) - mean) * rstd;
        g[i] = gradient.get(i) * w.get(i);
      }
    };
    FloatPair total{0.0f, 0.0f};  // Of g and of g n.
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto gradient = own.read(0, p);
      compute(p, gradient);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        sums[0][p][i] = fmaf(gradient.get(i), n[i], sums[0][p][i]);
        if constexpr (kCentred) {
          sums[1][p][i] += gradient.get(i);
          total.a += g[i];
        }
        total.b = fmaf(g[i], n[i], total.b);
      }
    }
    float mean_g = 0.0f;
    if constexpr (kCentred) {
      total = block_sum(total, parts[call]);
      mean_g = total.a / static_cast<float>(width);
    } else {
      total.b = block_sum(total.b, parts[call]);
    }
    call = 1 - call;
    const float mean_gn = total.b / static_cast<float>(width);
#pragma unroll 2
    for (int p = 0; p < kPacks; ++p) {
      if constexpr (!kKeeps) compute(p, own.read(0, p));
      const auto before = own.read(2, p);
      float results[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) results[i] = fmaf(rstd, g[i] - mean_g - n[i] * mean_gn, before.get(i));
      store_pack<kVector, kN>(dx + own.start, own.at(p), width, rounded<T>(results));
    }
    own.end_row();
  }

#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    float* out = partials + (static_cast<int64_t>(blockIdx.x) * kSums + s) * width;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if (own.at(p) + i < width) out[own.at(p) + i] = sums[s][p][i];
      }
    }
  }
}

}  // namespace telar::backend::cuda
