// A look at the code that this module holds.
#pragma once

#include <cuda_runtime_api.h>

namespace telar::backend::cuda {

// cudaErrorNoKernelImageForDevice when the current device cannot run the code of this module.
cudaError_t check_code();

}  // namespace telar::backend::cuda
