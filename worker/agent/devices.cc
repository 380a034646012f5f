#include "worker/agent/devices.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/probe/nvml.h"

namespace telar::agent {
namespace {

using probe::kNvmlLibrary;
using probe::kNvmlNameSize;
using probe::kNvmlSuccess;
using probe::Nvml;
using probe::NvmlDevice;
using probe::NvmlMemory;

absl::StatusOr<std::vector<v1::Device>> gpus() {
  const Nvml nvml;
  if (!nvml.loaded())
    return absl::FailedPreconditionError(absl::StrCat("no NVIDIA driver: ", kNvmlLibrary, " is not there"));
  if (const int code = nvml.call("nvmlInit_v2"); code != kNvmlSuccess) {
    return absl::FailedPreconditionError(absl::StrCat("the NVIDIA driver does not answer: nvmlInit_v2 gives ", code));
  }
  std::vector<v1::Device> found;
  absl::Status status;
  unsigned count = 0;
  if (const int code = nvml.call("nvmlDeviceGetCount_v2", &count); code != kNvmlSuccess) {
    status = absl::FailedPreconditionError(absl::StrCat("nvmlDeviceGetCount_v2 gives ", code));
  }
  for (unsigned index = 0; index < count && status.ok(); ++index) {
    NvmlDevice device = nullptr;
    char name[kNvmlNameSize] = {};
    NvmlMemory memory{};
    if (nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device) != kNvmlSuccess ||
        nvml.call("nvmlDeviceGetName", device, &name[0], kNvmlNameSize) != kNvmlSuccess ||
        nvml.call("nvmlDeviceGetMemoryInfo", device, &memory) != kNvmlSuccess) {
      status = absl::FailedPreconditionError(absl::StrCat("GPU ", index, " does not answer the driver"));
      break;
    }
    v1::Device& one = found.emplace_back();
    one.set_kind(v1::ResourceSpec::GPU);
    one.set_index(index);
    one.set_model(name);
    one.set_memory_bytes(memory.total);
  }
  nvml.call("nvmlShutdown");
  if (!status.ok()) return status;
  if (found.empty()) return absl::FailedPreconditionError("the NVIDIA driver knows no GPU");
  return found;
}

std::vector<v1::Device> slots_of_cpu(int count) {
  const auto memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<v1::Device> slots(static_cast<size_t>(count));
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].set_kind(v1::ResourceSpec::CPU);
    slots[i].set_index(static_cast<uint32_t>(i));
    slots[i].set_model("cpu");
    slots[i].set_memory_bytes(memory / slots.size());
  }
  return slots;
}

}  // namespace

absl::StatusOr<std::vector<v1::Device>> find_devices(DeviceKind kind, int cpu_slots, int domain_size) {
  absl::StatusOr<std::vector<v1::Device>> found = kind == DeviceKind::kCpu ? slots_of_cpu(cpu_slots) : gpus();
  if (!found.ok() && kind == DeviceKind::kGpu) {
    return absl::FailedPreconditionError(absl::StrCat("--device-kind gpu: ", std::string(found.status().message())));
  }
  if (!found.ok()) found = slots_of_cpu(cpu_slots);
  if (domain_size > 0) {
    for (v1::Device& device : *found) device.set_nvlink_domain(device.index() / static_cast<uint32_t>(domain_size));
  }
  return found;
}

uint32_t threads_per_device(size_t devices) {
  cpu_set_t usable;  // Not hardware_concurrency(): a container or taskset may give fewer.
  CPU_ZERO(&usable);
  const int cores = sched_getaffinity(0, sizeof(usable), &usable) == 0 ? CPU_COUNT(&usable) : 1;
  return std::max(1u, static_cast<uint32_t>(cores) / std::max(1u, static_cast<uint32_t>(devices)));
}

}  // namespace telar::agent
