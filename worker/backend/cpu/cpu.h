// The pieces that libtelar_cpu.so is made of; module.cc puts them together. Tests link the pieces directly.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::backend::cpu {

// kernels.cc and its neighbours, one file an op family; oneDNN for products.
std::unique_ptr<Kernels> create_kernels();

// gloo_communicator.cc.
absl::StatusOr<std::unique_ptr<Communicator>> create_gloo_communicator(KeyValueStore& store,
                                                                       const CommunicatorOptions& options);

using CommunicatorFactory =
    std::function<absl::StatusOr<std::unique_ptr<Communicator>>(KeyValueStore&, const CommunicatorOptions&)>;
// device.cc: memory, thread streams, events. `kernels` and `communicators` may be null where a test needs neither.
std::unique_ptr<Device> create_device(const DeviceOptions& options, std::unique_ptr<Kernels> kernels,
                                      CommunicatorFactory communicators);

}  // namespace telar::backend::cpu
