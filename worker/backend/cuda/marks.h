// Marks of a CUDA device's streams: words in memory of this process, which outlives the context, written by the
// device's front end without a kernel, so that none has to find room beside others.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::backend::cuda {

// As Device::create_marks(); the device must be current.
absl::StatusOr<std::unique_ptr<Marks>> create_cuda_marks(uint32_t slots);

}  // namespace telar::backend::cuda
