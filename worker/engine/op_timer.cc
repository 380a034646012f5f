#include "worker/engine/op_timer.h"

#include <chrono>
#include <limits>

namespace telar::engine {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int kClockReadings = 5;

}  // namespace

absl::StatusOr<std::unique_ptr<OpTimer>> OpTimer::create(const Plan& plan, backend::Device& device, Now now) {
  std::unique_ptr<OpTimer> timer(new OpTimer(plan, device, now ? std::move(now) : Now(steady_seconds)));
  absl::Status status;
  const auto make = [&](Event& event) {
    absl::StatusOr<Event> made = device.create_timed_event();
    status.Update(made.status());
    if (made.ok()) event = *std::move(made);
  };
  timer->starts_.resize(plan.ops.size());
  timer->stops_.resize(plan.ops.size());
  for (Event* event : {&timer->begin_, &timer->end_, &timer->anchor_}) make(*event);
  for (OpId op = 0; op < plan.ops.size() && status.ok(); ++op) {
    if (!plan.ops[op].waits.empty()) make(timer->starts_[op]);
    make(timer->stops_[op]);
  }
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<backend::Stream>> clock = device.create_stream("clock", false);
  if (!clock.ok()) return clock.status();
  timer->clock_ = *std::move(clock);
  return timer;
}

void OpTimer::begin(backend::Stream& origin) {
  began_ = now_();
  origin.record(*begin_);
}

void OpTimer::before(OpId op, backend::Stream& lane) {
  if (starts_[op] != nullptr) lane.record(*starts_[op]);
}

void OpTimer::after(OpId op, backend::Stream& lane) { lane.record(*stops_[op]); }

void OpTimer::end(backend::Stream& origin) {
  origin.record(*end_);
  issued_ = now_() - began_;
}

// Device times are relative. An event on an idle stream happens between two looks at the host's clock; the closest two
// say best when, and how long before the run began.
absl::Status OpTimer::find_start(RunTimes& times) {
  double closest = std::numeric_limits<double>::max();
  for (int reading = 0; reading < kClockReadings; ++reading) {
    const double before = now_();
    clock_->record(*anchor_);
    absl::Status status = clock_->synchronize();
    const double after = now_();
    if (!status.ok()) return status;
    const absl::StatusOr<double> since = device_.seconds_between(*begin_, *anchor_);
    if (!since.ok()) return since.status();
    if (after - before >= closest) continue;
    closest = after - before;
    times.start = (before + after) / 2 - *since;
    times.start_error = closest / 2;
  }
  return absl::OkStatus();
}

absl::StatusOr<RunTimes> OpTimer::times() {
  RunTimes times{.issued = issued_};
  absl::Status status;
  const auto since_begin = [&](backend::Event& event) {
    const absl::StatusOr<double> seconds = device_.seconds_between(*begin_, event);
    status.Update(seconds.status());
    return seconds.ok() ? *seconds : 0.0;
  };
  times.seconds = since_begin(*end_);
  std::vector<double> lane_at(plan_.lanes.size(), 0);  // When the lane's last op ended.
  for (OpId op = 0; op < plan_.ops.size() && status.ok(); ++op) {
    double& at = lane_at[plan_.ops[op].lane];
    OpTime time{.start = starts_[op] == nullptr ? at : since_begin(*starts_[op]), .stop = since_begin(*stops_[op])};
    at = time.stop;
    times.ops.push_back(time);
  }
  if (status.ok()) status = find_start(times);
  if (!status.ok()) return status;
  return times;
}

}  // namespace telar::engine
