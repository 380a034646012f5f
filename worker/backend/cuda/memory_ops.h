// Launchers of memory_ops.cu. No checks in here: kernels.cc has made them. Each returns the launch's error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/backend/dtype.h"

namespace telar::backend::cuda {

// x[i] = value; f32, bf16, f16, i32 (rounded to nearest even).
cudaError_t launch_fill(cudaStream_t stream, DType dtype, float value, void* x, int64_t elements);
// y[i] = x[i] between f32, bf16 and f16, rounded to nearest even.
cudaError_t launch_cast(cudaStream_t stream, DType from, const void* x, DType to, void* y, int64_t elements);
// y[i] = a[i] + b[i] in f32; f32 or bf16. y may be a or b.
cudaError_t launch_add(cudaStream_t stream, DType dtype, const void* a, const void* b, void* y, int64_t elements);

// cudaErrorNoKernelImageForDevice when the current device cannot run the code of this module.
cudaError_t check_code();

}  // namespace telar::backend::cuda
