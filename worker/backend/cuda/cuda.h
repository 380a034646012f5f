// The pieces that libtelar_cuda.so is made of; module.cc puts them together.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::backend::cuda {

// errors.cc. OK, or the error of `call` by name and text: INTERNAL, RESOURCE_EXHAUSTED when memory ran out. Clears the
// runtime's own memory of the error where it allows that.
absl::Status to_status(cudaError_t error, const std::string& call);

// kernels.cc. Launches on the stream's CUDA stream; the current device must be the stream's, and `device`.
class CudaKernels;
absl::StatusOr<std::unique_ptr<CudaKernels>> create_kernels(int device, bool deterministic);

// device.cc. FAILED_PRECONDITION: no driver, no GPU, no such index, or a GPU that this module holds no code for.
absl::StatusOr<std::unique_ptr<Device>> open_device(const DeviceOptions& options);
// Of a stream that such a device made.
cudaStream_t handle_of(Stream& stream);

}  // namespace telar::backend::cuda
