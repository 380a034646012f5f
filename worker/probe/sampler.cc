#include "worker/probe/sampler.h"

#include <algorithm>
#include <thread>

namespace telar::probe {
namespace {
constexpr unsigned kMostProcesses = 256;
}

std::unique_ptr<Sampler> Sampler::open(const std::string& library, std::string& problem) {
  std::unique_ptr<Sampler> sampler(new Sampler(library));
  if (!sampler->nvml_.loaded()) {
    problem = library + " cannot be loaded";
    return nullptr;
  }
  unsigned count = 0;
  int code = sampler->nvml_.call("nvmlInit_v2");
  if (code == kNvmlSuccess) code = sampler->nvml_.call("nvmlDeviceGetCount_v2", &count);
  if (code != kNvmlSuccess) {
    problem = "the driver does not answer: NVML gives " + std::to_string(code);
    return nullptr;
  }
  sampler->nvml_.call("nvmlEventSetCreate", &sampler->events_);
  sampler->add_devices(count);
  return sampler;
}

Sampler::~Sampler() {
  if (!nvml_.loaded()) return;
  if (events_ != nullptr) nvml_.call("nvmlEventSetFree", events_);
  nvml_.call("nvmlShutdown");
}

void Sampler::add_devices(unsigned count) {
  devices_.resize(count);
  report_.devices.resize(count);
  for (unsigned index = 0; index < count; ++index) {
    report_.devices[index].index = index;
    NvmlDevice& handle = devices_[index].handle;
    if (nvml_.call("nvmlDeviceGetHandleByIndex_v2", index, &handle) != kNvmlSuccess) handle = nullptr;
    // Where it is not supported there are no events, and the rest is still told.
    if (handle != nullptr && events_ != nullptr) nvml_.call("nvmlDeviceRegisterEvents", handle, kNvmlEventXid, events_);
  }
}

void Sampler::hold(DeviceReading& reading, const std::string& code, bool holds) {
  if (!holds) {
    reading.holding.erase(code);
  } else if (reading.holding.insert(code).second) {
    ++reading.counts[code];
  }
}

const Report& Sampler::sample() {
  ++report_.round;
  for (size_t i = 0; i < devices_.size(); ++i) sample_device(devices_[i], report_.devices[i]);
  return report_;
}

void Sampler::sample_device(Device& device, DeviceReading& reading) const {
  NvmlMemory memory{};
  const int code =
      device.handle == nullptr ? kNvmlGpuIsLost : nvml_.call("nvmlDeviceGetMemoryInfo", device.handle, &memory);
  hold(reading, "gpu-lost", code == kNvmlGpuIsLost);
  if (code != kNvmlSuccess) return;
  reading.used_bytes = memory.used;
  sample_memory(device, reading);
  sample_errors(device, reading);
  sample_links(device, reading);
}

void Sampler::sample_memory(const Device& device, DeviceReading& reading) const {
  std::vector<NvmlProcess> processes(kMostProcesses);
  unsigned count = kMostProcesses;
  reading.pids.clear();
  if (nvml_.call("nvmlDeviceGetComputeRunningProcesses_v3", device.handle, &count, processes.data()) != kNvmlSuccess) {
    return;
  }
  for (unsigned i = 0; i < std::min(count, kMostProcesses); ++i) {
    reading.pids.push_back(static_cast<int>(processes[i].pid));
  }
}

void Sampler::sample_errors(Device& device, DeviceReading& reading) const {
  unsigned long long errors = 0;
  if (nvml_.call("nvmlDeviceGetTotalEccErrors", device.handle, kNvmlUncorrected, kNvmlSinceTheReset, &errors) ==
      kNvmlSuccess) {
    // What is older than this probe was seen by the one before it, or was there when the node joined.
    if (device.ecc_known && errors > device.ecc_errors) {
      reading.counts["ecc-uncorrected"] += errors - device.ecc_errors;
    }
    device.ecc_errors = errors;
    device.ecc_known = true;
  }
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  int pages_pending = 0;
  bool known = false;
  if (nvml_.call("nvmlDeviceGetRemappedRows", device.handle, &corrected, &uncorrected, &pending, &failed) ==
      kNvmlSuccess) {
    known = true;
    hold(reading, "remap-failed", failed != 0);
  }
  // Devices before Ampere retire pages instead of rows.
  if (!known && nvml_.call("nvmlDeviceGetRetiredPagesPendingStatus", device.handle, &pages_pending) == kNvmlSuccess) {
    known = true;
  }
  if (known) hold(reading, "remap-pending", pending != 0 || pages_pending != 0);
}

void Sampler::sample_links(Device& device, DeviceReading& reading) const {
  for (unsigned link = 0; link < kNvmlMostLinks; ++link) {
    int up = 0;
    if (nvml_.call("nvmlDeviceGetNvLinkState", device.handle, link, &up) != kNvmlSuccess) continue;
    // A link that never was up has nothing at its other end.
    if (up != 0) device.links_up.insert(link);
    if (device.links_up.count(link) != 0) hold(reading, "nvlink-" + std::to_string(link) + "-down", up == 0);
  }
}

bool Sampler::next_event(unsigned milliseconds) {
  NvmlEvent event{};
  if (nvml_.call("nvmlEventSetWait_v2", events_, &event, milliseconds) != kNvmlSuccess) return false;
  unsigned index = 0;
  const bool known = nvml_.call("nvmlDeviceGetIndex", event.device, &index) == kNvmlSuccess;
  if (event.type != kNvmlEventXid) return true;
  for (DeviceReading& reading : report_.devices) {
    // Of a device that cannot say which one it is: every one may be it.
    if (!known || reading.index == index) ++reading.counts["xid-" + std::to_string(event.data)];
  }
  return true;
}

void Sampler::wait(std::chrono::milliseconds longest) {
  const auto start = std::chrono::steady_clock::now();
  if (events_ == nullptr || !next_event(static_cast<unsigned>(longest.count()))) {
    // A library that returns at once, for whatever reason, must not make us spin.
    const auto spent = std::chrono::steady_clock::now() - start;
    if (spent < longest) std::this_thread::sleep_for(longest - spent);
    return;
  }
  constexpr int kMostEvents = 1000;  // Then the daemon shall hear of them first.
  for (int i = 0; i < kMostEvents && next_event(0); ++i) {
  }
}

}  // namespace telar::probe
