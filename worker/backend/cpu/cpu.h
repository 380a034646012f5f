// The pieces that libtelar_cpu.so is made of; module.cc puts them together. Tests link the pieces directly.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::backend::cpu {

// kernels.cc and its neighbours, one file an op family; oneDNN for products.
std::unique_ptr<Kernels> create_kernels();

// gloo_communicator.cc. As Device::create_communicators().
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> create_gloo_communicators(KeyValueStore& store,
                                                                                     const GangOptions& options,
                                                                                     std::span<const Group> groups);

using CommunicatorFactory = std::function<absl::StatusOr<std::vector<std::unique_ptr<Communicator>>>(
    KeyValueStore&, const GangOptions&, std::span<const Group>)>;
// device.cc: memory, thread streams, events. `kernels` and `communicators` may be null where a test needs neither.
std::unique_ptr<Device> create_device(const DeviceOptions& options, std::unique_ptr<Kernels> kernels,
                                      CommunicatorFactory communicators);

}  // namespace telar::backend::cpu
