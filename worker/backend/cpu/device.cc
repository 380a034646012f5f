#include "worker/backend/cpu/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "worker/backend/cpu/stream.h"

namespace telar::backend::cpu {
namespace {

// Below this an allocation is not worth reading /proc/meminfo for, and huge pages do not help.
constexpr size_t kLargeBytes = size_t{32} << 20;

class MappedMemory final : public Memory {
 public:
  MappedMemory(void* data, size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  ~MappedMemory() override { munmap(data_, std::max<size_t>(bytes_, 1)); }
  std::byte* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

// The value of the first line "key : value" of a /proc file; empty if there is none.
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

uint64_t total_memory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// What can be had without swapping; page cache counts as free.
uint64_t available_memory() {
  const std::string kilobytes = proc_value("/proc/meminfo", "MemAvailable");
  return kilobytes.empty() ? total_memory() : std::strtoull(kilobytes.c_str(), nullptr, 10) * 1024;
}

absl::Status exhausted(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("host memory: ", bytes, " bytes asked, ", available_memory(), " available"));
}

}  // namespace

CpuDevice::CpuDevice(const DeviceOptions& options, std::unique_ptr<Kernels> kernels, CommunicatorFactory communicators)
    : options_(options), kernels_(std::move(kernels)), communicators_(std::move(communicators)) {
  info_.model = proc_value("/proc/cpuinfo", "model name");
  if (info_.model.empty()) info_.model = "CPU";
  info_.memory_bytes = total_memory();
  info_.multiplies_fp8 = info_.multiplies_fp8_blocks = true;
}

absl::StatusOr<std::unique_ptr<Memory>> CpuDevice::allocate(size_t bytes) {
  if (bytes >= kLargeBytes && bytes > available_memory()) return exhausted(bytes);
  const size_t mapped = std::max<size_t>(bytes, 1);
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return exhausted(bytes);
  if (bytes >= kLargeBytes) madvise(data, mapped, MADV_HUGEPAGE);  // A hint; kernels without it say EINVAL.
  return std::make_unique<MappedMemory>(data, bytes);
}

absl::StatusOr<std::unique_ptr<Stream>> CpuDevice::create_stream(const std::string& name, bool compute) {
  try {
    return std::make_unique<ThreadStream>(name, compute ? std::max(1, options_.threads) : 1);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("no thread for stream '", name, "': ", error.what()));
  }
}

absl::StatusOr<std::unique_ptr<Event>> CpuDevice::create_event() { return std::make_unique<ThreadEvent>(); }

absl::StatusOr<double> CpuDevice::seconds_between(Event& start, Event& stop) {
  const auto from = static_cast<ThreadEvent&>(start).completed_at();
  const auto to = static_cast<ThreadEvent&>(stop).completed_at();
  return std::chrono::duration<double>(to - from).count();
}

absl::StatusOr<std::unique_ptr<Graph>> CpuDevice::capture(Stream&, const std::function<absl::Status()>&) {
  return absl::UnimplementedError("the CPU has no graphs");
}

absl::StatusOr<std::unique_ptr<Marks>> CpuDevice::create_marks(uint32_t) {
  return absl::UnimplementedError("on the CPU whatever fails is named by itself");
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CpuDevice::create_communicators(
    KeyValueStore& store, const GangOptions& options, std::span<const Group> groups) {
  if (!communicators_) {
    return absl::FailedPreconditionError(absl::StrCat("gang '", options.name, "': this device has no network"));
  }
  return communicators_(store, options, groups);
}

absl::Status CpuDevice::copy_to_device(const void* host, std::byte* device, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
  return absl::OkStatus();
}

absl::Status CpuDevice::copy_to_host(const std::byte* device, void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
  return absl::OkStatus();
}

std::unique_ptr<Device> create_device(const DeviceOptions& options, std::unique_ptr<Kernels> kernels,
                                      CommunicatorFactory communicators) {
  return std::make_unique<CpuDevice>(options, std::move(kernels), std::move(communicators));
}

}  // namespace telar::backend::cpu
