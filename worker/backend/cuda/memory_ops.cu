#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "worker/backend/cuda/memory_ops.h"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;  // Sixteen blocks a multiprocessor of an H200; each loops over the rest.

template <typename T>
__device__ T from_float(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else {
    return T(value);  // Nearest even, for both 16-bit types.
  }
}
template <>
__device__ int32_t from_float<int32_t>(float value) {
  return __float2int_rn(value);
}

// Elementwise: y[i] = f(i), a thread at a time striding over the grid, neighbours in neighbouring threads.
template <typename Function>
__global__ void __launch_bounds__(kThreads) for_each(int64_t elements, Function f) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) f(i);
}

template <typename T>
struct Fill {
  T* x;
  float value;
  __device__ void operator()(int64_t i) const { x[i] = from_float<T>(value); }
};

template <typename From, typename To>
struct Cast {
  const From* x;
  To* y;
  __device__ void operator()(int64_t i) const { y[i] = from_float<To>(static_cast<float>(x[i])); }
};

template <typename T>
struct Add {
  const T *a, *b;
  T* y;
  __device__ void operator()(int64_t i) const {
    y[i] = from_float<T>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
};

template <typename Function>
cudaError_t launch(cudaStream_t stream, int64_t elements, Function f) {
  if (elements == 0) return cudaSuccess;
  const int64_t blocks = std::min((elements + kThreads - 1) / kThreads, kMaxBlocks);
  for_each<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(elements, f);
  return cudaGetLastError();
}

template <typename T>
cudaError_t fill(cudaStream_t stream, float value, void* x, int64_t elements) {
  return launch(stream, elements, Fill<T>{static_cast<T*>(x), value});
}

template <typename From, typename To>
cudaError_t cast(cudaStream_t stream, const void* x, void* y, int64_t elements) {
  return launch(stream, elements, Cast<From, To>{static_cast<const From*>(x), static_cast<To*>(y)});
}

template <typename From>
cudaError_t cast_from(cudaStream_t stream, const void* x, DType to, void* y, int64_t elements) {
  switch (to) {
    case DType::kF32:
      return cast<From, float>(stream, x, y, elements);
    case DType::kBF16:
      return cast<From, __nv_bfloat16>(stream, x, y, elements);
    case DType::kF16:
      return cast<From, __half>(stream, x, y, elements);
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename T>
cudaError_t add(cudaStream_t stream, const void* a, const void* b, void* y, int64_t elements) {
  return launch(stream, elements, Add<T>{static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y)});
}

}  // namespace

cudaError_t launch_fill(cudaStream_t stream, DType dtype, float value, void* x, int64_t elements) {
  switch (dtype) {
    case DType::kF32:
      return fill<float>(stream, value, x, elements);
    case DType::kBF16:
      return fill<__nv_bfloat16>(stream, value, x, elements);
    case DType::kF16:
      return fill<__half>(stream, value, x, elements);
    case DType::kI32:
      return fill<int32_t>(stream, value, x, elements);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t launch_cast(cudaStream_t stream, DType from, const void* x, DType to, void* y, int64_t elements) {
  switch (from) {
    case DType::kF32:
      return cast_from<float>(stream, x, to, y, elements);
    case DType::kBF16:
      return cast_from<__nv_bfloat16>(stream, x, to, y, elements);
    case DType::kF16:
      return cast_from<__half>(stream, x, to, y, elements);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t launch_add(cudaStream_t stream, DType dtype, const void* a, const void* b, void* y, int64_t elements) {
  switch (dtype) {
    case DType::kF32:
      return add<float>(stream, a, b, y, elements);
    case DType::kBF16:
      return add<__nv_bfloat16>(stream, a, b, y, elements);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t check_code() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, for_each<Fill<float>>);
}

}  // namespace telar::backend::cuda
