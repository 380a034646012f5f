#include "worker/backend/cuda/memory_ops.h"

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/elementwise.cuh"

namespace telar::backend::cuda {
namespace {

struct Fill {
  float value;
  __device__ float operator()() const { return value; }
};
struct Same {
  __device__ float operator()(float x) const { return x; }
};
struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

absl::Status CudaKernels::fill(Stream& stream, float value, Out x) {
  if (absl::Status status = check_fill(x); !status.ok()) return status;
  const cudaStream_t on = handle_of(stream);
  if (x.dtype == DType::kI32) return to_status(map(on, x.elements(), Fill{value}, target<int32_t>(x)), "fill");
  return with_type(x.dtype, [&](auto type) {
    return to_status(map(on, x.elements(), Fill{value}, target<decltype(type)>(x)), "fill");
  });
}

absl::Status CudaKernels::copy(Stream& stream, In x, Out y) {
  if (absl::Status status = check_copy(x, y); !status.ok()) return status;
  if (x.bytes() == 0) return absl::OkStatus();
  return to_status(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, handle_of(stream)), "copy");
}

absl::Status CudaKernels::cast(Stream& stream, In x, Out y) {
  if (absl::Status status = check_cast(x, y); !status.ok()) return status;
  if (x.dtype == y.dtype) return copy(stream, x, y);
  return with_type(x.dtype, [&](auto from) {
    return with_type(y.dtype, [&](auto to) {
      return to_status(map(handle_of(stream), x.elements(), Same{}, target<decltype(to)>(y), source<decltype(from)>(x)),
                       "cast");
    });
  });
}

absl::Status CudaKernels::add(Stream& stream, In a, In b, Out y) {
  if (absl::Status status = check_add(a, b, y); !status.ok()) return status;
  return with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    return to_status(map(handle_of(stream), a.elements(), Add{}, target<T>(y), source<T>(a), source<T>(b)), "add");
  });
}

cudaError_t check_code() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, map_kernel<true, Fill, float>);
}

}  // namespace telar::backend::cuda
