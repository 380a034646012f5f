// The CPU as a device: memory by mmap, streams by threads. `create_device` of cpu.h makes one.
#pragma once

#include <memory>

#include "worker/backend/cpu/cpu.h"

namespace telar::backend::cpu {

class CpuDevice final : public Device {
 public:
  CpuDevice(const DeviceOptions& options, std::unique_ptr<Kernels> kernels, CommunicatorFactory communicators);

  const DeviceInfo& info() const override { return info_; }
  // Whole pages, zeroed as they are touched. RESOURCE_EXHAUSTED if that is more than the machine has available.
  absl::StatusOr<std::unique_ptr<Memory>> allocate(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Memory>> allocate_pinned(size_t bytes) override { return allocate(bytes); }
  absl::StatusOr<DeviceOverhead> overhead() override { return DeviceOverhead(); }
  absl::StatusOr<std::unique_ptr<Stream>> create_stream(const std::string& name, bool compute) override;
  absl::StatusOr<std::unique_ptr<Event>> create_event() override;
  absl::StatusOr<std::unique_ptr<Event>> create_timed_event() override { return create_event(); }
  absl::StatusOr<double> seconds_between(Event& start, Event& stop) override;
  absl::StatusOr<std::unique_ptr<Graph>> capture(Stream& origin, const std::function<absl::Status()>& issue) override;
  absl::StatusOr<std::unique_ptr<Marks>> create_marks(uint32_t slots) override;
  Kernels& kernels() override { return *kernels_; }  // Only if it was made with some.
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> create_communicators(
      KeyValueStore& store, const GangOptions& options, std::span<const Group> groups) override;
  absl::Status copy_to_device(const void* host, std::byte* device, size_t bytes) override;
  absl::Status copy_to_host(const std::byte* device, void* host, size_t bytes) override;
  absl::StatusOr<std::vector<KernelLaunch>> describe(Stream&, const std::function<absl::Status(Stream&)>&) override {
    return std::vector<KernelLaunch>();
  }

 private:
  DeviceOptions options_;
  std::unique_ptr<Kernels> kernels_;
  CommunicatorFactory communicators_;
  DeviceInfo info_;
};

}  // namespace telar::backend::cpu
