// How many blocks of a kernel a device holds at once, for kernels that go over their work with just so many.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace telar::backend::cuda {

// Lets blocks of the kernel have up to `most` bytes of dynamic shared memory, and as much of each processor's memory as
// there is.
cudaError_t allow_shared(const void* kernel, size_t most);

// On the current device, of all its processors together, with `bytes` of dynamic shared memory a block. The same at
// every call: asked once and kept. Threads: any.
cudaError_t resident_blocks(const void* kernel, int threads, size_t bytes, int* blocks);

}  // namespace telar::backend::cuda
