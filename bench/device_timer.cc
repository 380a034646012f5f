#include "bench/device_timer.h"

#include <algorithm>
#include <utility>

namespace telar::bench {

absl::StatusOr<DeviceTimer> DeviceTimer::create(backend::Device& device) {
  auto start = device.create_timed_event(), stop = device.create_timed_event();
  if (!start.ok()) return start.status();
  if (!stop.ok()) return stop.status();
  return DeviceTimer(device, *std::move(start), *std::move(stop));
}

absl::StatusOr<double> DeviceTimer::seconds(backend::Stream& stream, int calls, const Work& work) {
  stream.record(*start_);
  for (int i = 0; i < calls; ++i) stream.submit(work);
  stream.record(*stop_);
  if (absl::Status status = stream.synchronize(); !status.ok()) return status;
  return device_->seconds_between(*start_, *stop_);
}

absl::StatusOr<double> DeviceTimer::seconds_of_one(backend::Stream& stream, int batches, int calls, const Work& work) {
  std::vector<double> all;
  for (int batch = -1; batch < batches; ++batch) {
    const auto took = seconds(stream, batch < 0 ? 1 : calls, work);
    if (!took.ok()) return took.status();
    if (batch >= 0) all.push_back(*took / calls);
  }
  std::nth_element(all.begin(), all.begin() + batches / 2, all.end());
  return all[static_cast<size_t>(batches / 2)];
}

}  // namespace telar::bench
