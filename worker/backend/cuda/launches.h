// What a call launches, read off a graph that it is captured into.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::backend::cuda {

// The kernels that `work` launches on `stream`, our own and the vendor libraries', in the order of the graph; see
// Device::describe. INTERNAL names what `work` did that cannot be captured. `device` must be current.
absl::StatusOr<std::vector<KernelLaunch>> describe_launches(int device, cudaStream_t stream,
                                                            const std::function<absl::Status()>& work);

}  // namespace telar::backend::cuda
