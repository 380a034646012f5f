#include <cfloat>

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 512;      // Of a row.
constexpr int kSumThreads = 1024;  // Of the one block that adds up what rows or tokens have.

// The maximum of some numbers and the sum of e^(number - maximum). The maximum starts at the lowest finite float, not
// at -inf, so that no difference is inf - inf; a NaN shows in the sum.
struct MaxSum {
  float maximum = -FLT_MAX;
  float sum = 0.0f;
};

__device__ MaxSum combine(MaxSum a, MaxSum b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  return {maximum, fmaf(a.sum, __expf(a.maximum - maximum), b.sum * __expf(b.maximum - maximum))};
}

// Of the whole block, in a fixed order, on every thread.
__device__ MaxSum block_max_sum(MaxSum value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const MaxSum other{__shfl_down_sync(0xffffffffu, value.maximum, distance),
                       __shfl_down_sync(0xffffffffu, value.sum, distance)};
    value = combine(value, other);  // Of use on the lower lanes only; lane 0 has the warp's.
  }
  __shared__ float maxima[kThreads / 32], sums[kThreads / 32];
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = value.maximum;
    sums[threadIdx.x / 32] = value.sum;
  }
  __syncthreads();
  MaxSum all{maxima[0], sums[0]};
  for (int warp = 1; warp < kThreads / 32; ++warp) all = combine(all, {maxima[warp], sums[warp]});
  return all;
}

// Block x: row x of [rows, pitch]. losses[row] = -log softmax(row)[target], 0 without a target. `logits` is read only,
// unless kGradient: then it becomes *loss_scale (null: 1) times d loss / d logits.
template <bool kGradient, bool kVector, typename T, typename Logits>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const int32_t* targets, const float* count, const float* loss_scale, int64_t vocab,
                         int64_t pitch, Logits* logits, double* losses) {
  constexpr int kN = kPackSize<T>, kStride = kThreads * kN;
  Logits* row = logits + blockIdx.x * pitch;
  const int64_t label = targets[blockIdx.x];
  if (label < 0 || label >= vocab) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0.0;
    if constexpr (kGradient) {
      Pack<T, kN> zeros{};
      for (int64_t at = threadIdx.x * kN; at < pitch; at += kStride) store_pack<kVector, kN>(row, at, pitch, zeros);
    }
    return;
  }
  const float at_label = to_float(row[label]);  // Before anyone overwrites it.

  MaxSum all;
#pragma unroll 2
  for (int64_t at = threadIdx.x * kN; at < vocab; at += kStride) {
    const auto pack = load_pack<kVector, kN, T>(row, at, pitch);
    float maximum = all.maximum;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (at + i < vocab) maximum = fmaxf(maximum, pack.get(i));
    }
    float sum = __fmul_rn(all.sum, __expf(all.maximum - maximum));  // Rounded alike with and without gradient.
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (at + i < vocab) sum += __expf(pack.get(i) - maximum);
    }
    all = {maximum, sum};
  }
  all = block_max_sum(all);
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = log(static_cast<double>(all.sum)) + (static_cast<double>(all.maximum) - at_label);
  }

  if constexpr (kGradient) {
    const float slope = *count > 0.0f ? (loss_scale == nullptr ? 1.0f : *loss_scale) / *count : 0.0f;
    const float inverse_sum = 1.0f / all.sum;
    for (int64_t at = threadIdx.x * kN; at < pitch; at += kStride) {
      auto pack = load_pack<kVector, kN, T>(row, at, pitch);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float softmax = __expf(pack.get(i) - all.maximum) * inverse_sum;
        const float gradient = (at + i == label ? softmax - 1.0f : softmax) * slope;
        pack.set(i, at + i < vocab ? gradient : 0.0f);
      }
      store_pack<kVector, kN>(row, at, pitch, pack);
    }
  }
}

// loss += sum of losses / count. No target at all: nothing to divide, and every row is zero.
__global__ void __launch_bounds__(kSumThreads)
    sum_losses_kernel(const double* losses, int64_t rows, const float* count, float* loss) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) sum += losses[row];
  sum = team_sum<kSumThreads>(sum);
  if (threadIdx.x == 0) *loss += static_cast<float>(*count > 0.0f ? sum * (1.0 / *count) : 0.0);
}

__global__ void __launch_bounds__(kSumThreads) count_valid_kernel(const int32_t* targets, int64_t rows, float* count) {
  int valid = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) valid += targets[row] >= 0;
  valid = team_sum<kSumThreads>(valid);
  if (threadIdx.x == 0) *count += static_cast<float>(valid);
}

// The arguments were checked. kGradient writes `logits`.
template <bool kGradient>
absl::Status launch(const char* op, cudaStream_t stream, Workspaces& workspaces, In targets, In count, In loss_scale,
                    int64_t vocab, const View& logits, InOut loss) {
  const int64_t rows = targets.elements(), pitch = logits.cols();
  const auto memory = workspaces.get(op, stream, static_cast<size_t>(rows) * sizeof(double));
  if (!memory.ok()) return memory.status();
  double* losses = reinterpret_cast<double*>(*memory);
  with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    using Logits = std::conditional_t<kGradient, T, const T>;
    constexpr int kN = kPackSize<T>;
    Logits* from = target<T>(logits);
    with_bool(pitch % kN == 0 && fits_packs<kN>(from), [&](auto vector) {
      cross_entropy_kernel<kGradient, vector.value, T, Logits><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
          source<int32_t>(targets), source<float>(count), source<float>(loss_scale), vocab, pitch, from, losses);
    });
  });
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) {
    sum_losses_kernel<<<1, kSumThreads, 0, stream>>>(losses, rows, source<float>(count), target<float>(loss));
    error = cudaGetLastError();
  }
  return to_status(error, op);
}

}  // namespace

absl::Status CudaKernels::count_valid(Stream& stream, In targets, InOut count) {
  if (absl::Status status = check_count_valid(targets, count); !status.ok()) return status;
  count_valid_kernel<<<1, kSumThreads, 0, handle_of(stream)>>>(source<int32_t>(targets), targets.elements(),
                                                               target<float>(count));
  return to_status(cudaGetLastError(), "count_valid");
}

absl::Status CudaKernels::cross_entropy(Stream& stream, In targets, In count, In loss_scale, int64_t vocab,
                                        InOut logits, InOut loss) {
  constexpr const char* kOp = "cross_entropy";
  if (absl::Status s = check_cross_entropy(kOp, targets, count, loss_scale, vocab, logits, loss); !s.ok()) return s;
  return launch<true>(kOp, handle_of(stream), workspaces_, targets, count, loss_scale, vocab, logits, loss);
}

absl::Status CudaKernels::cross_entropy_loss(Stream& stream, In targets, In count, int64_t vocab, In logits,
                                             InOut loss) {
  constexpr const char* kOp = "cross_entropy_loss";
  if (absl::Status s = check_cross_entropy(kOp, targets, count, In(), vocab, logits, loss); !s.ok()) return s;
  return launch<false>(kOp, handle_of(stream), workspaces_, targets, count, In(), vocab, logits, loss);
}

}  // namespace telar::backend::cuda
