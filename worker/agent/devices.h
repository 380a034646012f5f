// What this node offers: GPUs as the driver tells, or slots of the CPU.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"

namespace telar::agent {

enum class DeviceKind { kAuto, kCpu, kGpu };

// kAuto: every GPU if there is one, else CPU slots. kGpu without one: FAILED_PRECONDITION with NVML's reason.
// A CPU slot's memory is its share of the machine's. GPU indices are in PCI bus order.
// `domain_size` devices in order of index share an NVLink domain; 0: all of them.
absl::StatusOr<std::vector<v1::Device>> find_devices(DeviceKind kind, int cpu_slots, int domain_size);

// The same by a process of its own, for the driver may never answer: then what `memory` (a file, written each time)
// says of the last time counts. DEADLINE_EXCEEDED: there is none. Call while this process has one thread.
absl::StatusOr<std::vector<v1::Device>> find_devices_within(
    std::chrono::milliseconds deadline, const std::string& memory,
    const std::function<absl::StatusOr<std::vector<v1::Device>>()>& find);

std::string device_name(const v1::Device& device);  // "gpu:3"

// CPU threads for one rank when its job does not say: an equal share of the cores, at least 1.
uint32_t threads_per_device(size_t devices);

}  // namespace telar::agent
