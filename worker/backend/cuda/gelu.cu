#include "worker/backend/cuda/gelu.h"

#include "worker/backend/cuda/elementwise.cuh"
#include "worker/backend/cuda/gelu.cuh"
#include "worker/backend/cuda/greatest.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocks = 132 * 8;  // Eight a multiprocessor of an H200; each goes on over the rest.

// Half a unit in the last place, relative to the number, at the most.
template <typename T>
inline constexpr float kRounding = std::is_same_v<T, __nv_bfloat16> ? 1.0f / 256 : 1.0f / 2048;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    deviation_kernel(int64_t elements, const T* before, const T* after, float* worst) {
  constexpr float unit = kRounding<T>;
  float mine = 0.0f;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    const float x = to_float(before[i]), want = Gelu{}(x);
    // The slope may be steeper at the number that `before` is rounded from.
    const float moved = unit * fabsf(x), slope = fabsf(GeluBackward{}(1.0f, x)) + moved;
    const float allowed = unit * fabsf(want) + moved * slope + 1e-5f;
    const float excess = fabsf(to_float(after[i]) - want) / allowed;
    if (excess > mine || excess != excess) mine = excess;  // A NaN stays.
  }
  // Of numbers that are not negative, bits are ordered as values are, and NaN is above all.
  atomicMax(reinterpret_cast<int*>(worst), __float_as_int(fabsf(mine)));
}

// Grid-stride over packs, as a block that finds its greatest magnitude should have some.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads) gelu_amax_kernel(int64_t elements, const T* x, T* y, float* amax) {
  constexpr int kN = kPackSize<T>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kN;
  Greatest<T> greatest;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN; at < elements; at += stride) {
    const auto from = load_pack<kVector, kN>(x, at, elements);
    float results[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) results[i] = Gelu{}(from.get(i));
    const auto stored = rounded<T>(results);
    store_pack<kVector, kN>(y, at, elements, stored);
    greatest.take(stored);  // Of what is beyond the end, gelu(0).
  }
  greatest.publish(amax);
}

}  // namespace

cudaError_t launch_gelu(cudaStream_t stream, DType dtype, int64_t elements, const void* x, void* y, float* amax) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (amax != nullptr) {
      constexpr int kN = kPackSize<T>;
      const T* from = static_cast<const T*>(x);
      T* to = static_cast<T*>(y);
      const auto blocks = static_cast<unsigned>(std::min(kBlocks, ceil_div(elements, kThreads * kN)));
      with_bool(elements % kN == 0 && fits_packs<kN>(from) && fits_packs<kN>(to), [&](auto vector) {
        gelu_amax_kernel<vector.value><<<blocks, kThreads, 0, stream>>>(elements, from, to, amax);
      });
      return cudaGetLastError();
    }
    return map(stream, elements, Gelu{}, static_cast<T*>(y), static_cast<const T*>(x));
  });
}

cudaError_t launch_gelu_deviation(cudaStream_t stream, DType dtype, int64_t elements, const void* before,
                                  const void* after, float* worst) {
  if (cudaError_t error = cudaMemsetAsync(worst, 0, sizeof(float), stream); error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(std::min(kBlocks, ceil_div(elements, kThreads)));
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    deviation_kernel<<<blocks, kThreads, 0, stream>>>(elements, static_cast<const T*>(before),
                                                      static_cast<const T*>(after), worst);
  });
  return cudaGetLastError();
}

}  // namespace telar::backend::cuda
