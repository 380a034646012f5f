#include "worker/engine/gate.h"

#include <utility>

namespace telar::engine {

absl::StatusOr<std::unique_ptr<Gate>> Gate::create(backend::Device& device) {
  std::unique_ptr<Gate> gate(new Gate(device));
  absl::Status status;
  const auto keep = [&status](absl::StatusOr<std::unique_ptr<backend::Event>> made,
                              std::unique_ptr<backend::Event>& at) {
    status.Update(made.status());
    if (made.ok()) at = *std::move(made);
  };
  keep(device.create_event(), gate->done_);
  keep(device.create_timed_event(), gate->arrived_);
  keep(device.create_timed_event(), gate->passed_);
  if (!status.ok()) return status;
  return gate;
}

void Gate::close_until(backend::Stream& stream) {
  stream.record(*done_);
  closed_ = true;
}

void Gate::pass(backend::Stream& lane) {
  if (!std::exchange(closed_, false)) return;
  lane.record(*arrived_);
  lane.wait(*done_);
  lane.record(*passed_);
  held_ = true;
}

absl::StatusOr<double> Gate::seconds_held() const {
  if (!held_) return 0.0;
  return device_.seconds_between(*arrived_, *passed_);
}

}  // namespace telar::engine
