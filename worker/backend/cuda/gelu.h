// Launchers of gelu.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/backend/dtype.h"

namespace telar::backend::cuda {

// y = gelu(x), both of `dtype`. amax, unless null, and 0 before: becomes the greatest |y|.
cudaError_t launch_gelu(cudaStream_t stream, DType dtype, int64_t elements, const void* x, void* y,
                        float* amax = nullptr);

// worst[0], on the device, becomes the largest |after - gelu(before)| as a multiple of what two roundings, of `before`
// and of the result, may make; NaN if any is. A product that computes `after` itself is right where that is at most 1.
cudaError_t launch_gelu_deviation(cudaStream_t stream, DType dtype, int64_t elements, const void* before,
                                  const void* after, float* worst);

}  // namespace telar::backend::cuda
