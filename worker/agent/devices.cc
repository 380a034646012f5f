#include "worker/agent/devices.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include <spdlog/spdlog.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "telar/v1/cluster.pb.h"
#include "worker/agent/rank_dir.h"
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

// Between the processes, and in the file: "devices" or "refused", then a message or text.
const std::string kDevices = "devices\n", kRefused = "refused\n";

void tell_devices(int to, const absl::StatusOr<std::vector<v1::Device>>& devices) {
  std::string text = kRefused + std::string(devices.status().message());
  if (devices.ok()) {
    v1::RegisterNodeRequest all;
    all.mutable_devices()->Assign(devices->begin(), devices->end());
    text = kDevices + all.SerializeAsString();
  }
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(to, text.data() + done, text.size() - done);
    if (wrote <= 0) return;
    done += static_cast<size_t>(wrote);
  }
}

// All that the other end writes; empty when it is not done in time.
std::string hear_devices(int from, std::chrono::milliseconds deadline) {
  std::string text;
  const auto end = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd wait{from, POLLIN, 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return "";
    char block[4096];
    const ssize_t size = read(from, block, sizeof(block));
    if (size <= 0) return text;
    text.append(block, static_cast<size_t>(size));
  }
}

std::optional<std::vector<v1::Device>> parse_devices(const std::string& text) {
  v1::RegisterNodeRequest all;
  if (text.rfind(kDevices, 0) != 0 || !all.ParseFromString(text.substr(kDevices.size()))) return std::nullopt;
  return std::vector<v1::Device>(all.devices().begin(), all.devices().end());
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

absl::StatusOr<std::vector<v1::Device>> find_devices_within(
    std::chrono::milliseconds deadline, const std::string& memory,
    const std::function<absl::StatusOr<std::vector<v1::Device>>()>& find) {
  int answer[2] = {-1, -1};
  if (pipe2(answer, O_CLOEXEC) != 0) return find();
  const pid_t child = fork();
  if (child == 0) {
    close(answer[0]);
    tell_devices(answer[1], find());
    _exit(0);
  }
  close(answer[1]);
  const std::string told = child < 0 ? "" : hear_devices(answer[0], deadline);
  close(answer[0]);
  if (child > 0) {
    kill(child, SIGKILL);
    // One that the driver holds is not waited for.
    for (int i = 0; i < 100 && waitpid(child, nullptr, WNOHANG) == 0; ++i) usleep(1000);
  }
  if (told.rfind(kRefused, 0) == 0) return absl::FailedPreconditionError(told.substr(kRefused.size()));
  if (auto devices = parse_devices(told)) {
    write_file(memory, told).IgnoreError();  // The next start asks again.
    return *std::move(devices);
  }
  if (auto devices = parse_devices(read_file(memory).value_or(""))) {
    spdlog::error("the driver does not answer within {} ms; the devices are taken to be those of the last start",
                  deadline.count());
    return *std::move(devices);
  }
  return absl::DeadlineExceededError(absl::StrCat("the driver does not answer within ", deadline.count(),
                                                  " ms, and nothing is known of an earlier start"));
}

std::string device_name(const v1::Device& device) {
  return absl::StrCat(absl::AsciiStrToLower(v1::ResourceSpec::Kind_Name(device.kind())), ":", device.index());
}

uint32_t threads_per_device(size_t devices) {
  cpu_set_t usable;  // Not hardware_concurrency(): a container or taskset may give fewer.
  CPU_ZERO(&usable);
  const int cores = sched_getaffinity(0, sizeof(usable), &usable) == 0 ? CPU_COUNT(&usable) : 1;
  return std::max(1u, static_cast<uint32_t>(cores) / std::max(1u, static_cast<uint32_t>(devices)));
}

}  // namespace telar::agent
