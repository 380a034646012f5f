#include <algorithm>

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSquareBlocks = 132 * 8;  // Eight a multiprocessor of an H200; each goes on over the rest.

template <bool kVector, typename T>
__device__ double squares_of(const T* x, int64_t at, int64_t end) {
  const auto pack = load_pack<kVector, kPackSize<T>>(x, at, end);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kPackSize<T>; ++i) sum += static_cast<double>(pack.get(i)) * pack.get(i);
  return sum;
}

template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads) sum_squares_kernel(const T* x, int64_t elements, double* partials) {
  constexpr int kN = kPackSize<T>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kN;
  const int64_t whole = elements / kN * kN;
  double sum = 0;
  int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
#pragma unroll 4
  for (; at < whole; at += stride) sum += squares_of<kVector>(x, at, whole);
  if (at < elements) sum += squares_of<false>(x, at, elements);  // The ragged end, for one thread.
  sum = team_sum<kThreads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_squares_kernel(const double* partials, int count, float* sum) {
  double total = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) total += partials[i];
  total = team_sum<kThreads>(total);
  if (threadIdx.x == 0) *sum += static_cast<float>(total);
}

// `loss_scale` may be null.
__global__ void clip_scale_kernel(const float* sum_squares, const float* loss_scale, float max_norm, float* norm,
                                  float* scale) {
  const float factor = loss_scale == nullptr ? 1.0f : *loss_scale;
  const float value = sqrtf(*sum_squares) / factor;
  *norm = value;
  if (!isfinite(value)) {
    *scale = 0.0f;
  } else {
    *scale = (max_norm == 0.0f ? 1.0f : fminf(1.0f, max_norm / (value + 1e-6f))) / factor;
  }
}

__global__ void advance_step_kernel(StepParams params, const float* scale, float* state, float* step) {
  const bool skipped = *scale == 0.0f;
  state[kSkipped] = skipped ? 1.0f : 0.0f;
  if (skipped) {
    state[kSkippedSteps] += 1.0f;
    state[kGoodSteps] = 0.0f;
    state[kLossScale] = fmaxf(params.min_loss_scale, state[kLossScale] * params.backoff_factor);
  } else {
    state[kAppliedSteps] += 1.0f;
    state[kGoodSteps] += 1.0f;
    if (state[kGoodSteps] >= static_cast<float>(params.growth_interval)) {
      state[kGoodSteps] = 0.0f;
      state[kLossScale] = fminf(params.max_loss_scale, state[kLossScale] * params.growth_factor);
    }
  }
  const double t = fmaxf(1.0f, state[kAppliedSteps]);  // Before the first applied step nothing is corrected.
  step[kBiasCorrection1] = static_cast<float>(1.0 - pow(params.beta1, t));
  step[kBiasCorrection2] = static_cast<float>(1.0 - pow(params.beta2, t));
}

constexpr int kAdamPack = 4;

// `weight` may be null. Where the scale is 0 nothing changes, but `weight` is written all the same: it may hold
// anything.
template <bool kVector, typename W>
__device__ void adamw_pack(const AdamWParams& params, const float* grad, const float* scale_at, const float* step,
                           float* master, float* exp_avg, float* exp_avg_sq, W* weight, int64_t at, int64_t end) {
  // All on their way before anyone waits for the scale.
  auto values = load_pack<kVector, kAdamPack>(master, at, end);
  const auto g = load_pack<kVector, kAdamPack>(grad, at, end);
  auto m = load_pack<kVector, kAdamPack>(exp_avg, at, end);
  auto v = load_pack<kVector, kAdamPack>(exp_avg_sq, at, end);
  const float scale = *scale_at;
  if (scale != 0.0f) {
    const float rate = step[kLearningRate] / step[kBiasCorrection1];
    // Not as a factor 1 - decay, which would round most of it off.
    const float decay = step[kLearningRate] * params.weight_decay;
    const float inverse_bias_2 = 1.0f / step[kBiasCorrection2];
#pragma unroll
    for (int i = 0; i < kAdamPack; ++i) {
      const float gradient = g.get(i) * scale;
      const float mean = params.beta1 * m.get(i) + (1.0f - params.beta1) * gradient;
      const float square = params.beta2 * v.get(i) + (1.0f - params.beta2) * gradient * gradient;
      m.set(i, mean);
      v.set(i, square);
      const float change = rate * mean / (sqrtf(square * inverse_bias_2) + params.epsilon) + decay * values.get(i);
      values.set(i, values.get(i) - change);
    }
    store_pack<kVector, kAdamPack>(exp_avg, at, end, m);
    store_pack<kVector, kAdamPack>(exp_avg_sq, at, end, v);
    store_pack<kVector, kAdamPack>(master, at, end, values);
  }
  if (weight == nullptr) return;
  store_pack<kVector, kAdamPack>(weight, at, end, rounded<W>(values.values));
}

template <bool kVector, typename W>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(AdamWParams params, int64_t elements, const float* grad, const float* scale, const float* step,
                 float* master, float* exp_avg, float* exp_avg_sq, W* weight) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kAdamPack;
  if (at >= elements) return;
  if (kVector && at + kAdamPack <= elements) {
    adamw_pack<true>(params, grad, scale, step, master, exp_avg, exp_avg_sq, weight, at, at + kAdamPack);
  } else {
    adamw_pack<false>(params, grad, scale, step, master, exp_avg, exp_avg_sq, weight, at, elements);
  }
}

}  // namespace

absl::Status CudaKernels::sum_squares(Stream& stream, In x, InOut sum) {
  if (absl::Status status = check_sum_squares(x, sum); !status.ok()) return status;
  const int64_t n = x.elements();
  if (n == 0) return absl::OkStatus();
  const auto memory = workspaces_.get("sum_squares", handle_of(stream), kSquareBlocks * sizeof(double));
  if (!memory.ok()) return memory.status();
  double* partials = reinterpret_cast<double*>(*memory);
  const int blocks = with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const int count = static_cast<int>(std::min(ceil_div(n, kThreads * kN), kSquareBlocks));
    with_bool(fits_packs<kN>(source<T>(x)), [&](auto vector) {
      sum_squares_kernel<vector.value><<<count, kThreads, 0, handle_of(stream)>>>(source<T>(x), n, partials);
    });
    return count;
  });
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) {
    add_squares_kernel<<<1, kThreads, 0, handle_of(stream)>>>(partials, blocks, target<float>(sum));
    error = cudaGetLastError();
  }
  return to_status(error, "sum_squares");
}

absl::Status CudaKernels::clip_scale(Stream& stream, In sum_squares, In loss_scale, float max_norm, Out norm,
                                     Out scale) {
  if (absl::Status s = check_clip_scale(sum_squares, loss_scale, max_norm, norm, scale); !s.ok()) return s;
  clip_scale_kernel<<<1, 1, 0, handle_of(stream)>>>(source<float>(sum_squares), source<float>(loss_scale), max_norm,
                                                    target<float>(norm), target<float>(scale));
  return to_status(cudaGetLastError(), "clip_scale");
}

absl::Status CudaKernels::advance_step(Stream& stream, const StepParams& params, In scale, InOut state, InOut step) {
  if (absl::Status status = check_advance_step(params, scale, state, step); !status.ok()) return status;
  advance_step_kernel<<<1, 1, 0, handle_of(stream)>>>(params, source<float>(scale), target<float>(state),
                                                      target<float>(step));
  return to_status(cudaGetLastError(), "advance_step");
}

absl::Status CudaKernels::adamw(Stream& stream, const AdamWParams& params, In grad, In scale, In step, InOut master,
                                InOut exp_avg, InOut exp_avg_sq, Out weight) {
  if (absl::Status s = check_adamw(grad, scale, step, master, exp_avg, exp_avg_sq, weight); !s.ok()) return s;
  const int64_t n = grad.elements();
  if (n == 0) return absl::OkStatus();
  const float* g = source<float>(grad);
  float *values = target<float>(master), *m = target<float>(exp_avg), *v = target<float>(exp_avg_sq);
  with_type(weight.dtype, [&](auto type) {
    using W = decltype(type);
    constexpr int kN = kAdamPack;
    W* w = target<W>(weight);
    const bool fits =
        fits_packs<kN>(g) && fits_packs<kN>(values) && fits_packs<kN>(m) && fits_packs<kN>(v) && fits_packs<kN>(w);
    with_bool(fits, [&](auto vector) {
      adamw_kernel<vector.value><<<static_cast<unsigned>(ceil_div(n, kThreads * kN)), kThreads, 0, handle_of(stream)>>>(
          params, n, g, source<float>(scale), source<float>(step), values, m, v, w);
    });
  });
  return to_status(cudaGetLastError(), "adamw");
}

}  // namespace telar::backend::cuda
