// Seconds of work by the device's own clock.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::bench {

using Work = std::function<absl::Status(backend::Stream&)>;

// Threads: one caller.
class DeviceTimer {
 public:
  static absl::StatusOr<DeviceTimer> create(backend::Device& device);

  // Of `calls` of `work`, one after the other, all of them together. Blocks until they are done.
  absl::StatusOr<double> seconds(backend::Stream& stream, int calls, const Work& work);
  // Of one call, after a call that is not counted: the median of `batches` batches of `calls`.
  absl::StatusOr<double> seconds_of_one(backend::Stream& stream, int batches, int calls, const Work& work);

 private:
  DeviceTimer(backend::Device& device, std::unique_ptr<backend::Event> start, std::unique_ptr<backend::Event> stop)
      : device_(&device), start_(std::move(start)), stop_(std::move(stop)) {}

  backend::Device* device_;
  std::unique_ptr<backend::Event> start_, stop_;
};

}  // namespace telar::bench
