#include "worker/train/flight_log.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "common/fault_point.h"

namespace telar::train {

std::unique_ptr<FlightLog> FlightLog::create(const std::string& path, const std::vector<backend::Group>& groups,
                                             bool asynchronous) {
  std::unique_ptr<flight::Recorder> recorder;
  if (!path.empty()) {
    std::vector<flight::Group> rows;
    for (const backend::Group& group : groups) rows.push_back({group.name, group.ranks});
    auto made = flight::Recorder::create(path, rows);
    if (made.ok()) recorder = *std::move(made);
    if (!made.ok()) spdlog::warn("no flight record is kept: {}", std::string(made.status().message()));
  }
  return std::make_unique<FlightLog>(std::move(recorder), groups.size(), asynchronous);
}

FlightLog::FlightLog(std::unique_ptr<flight::Recorder> recorder, size_t groups, bool asynchronous)
    : recorder_(std::move(recorder)), asynchronous_(asynchronous), running_(groups), clock_(flight::now_ns()) {}

FlightLog::~FlightLog() = default;

void FlightLog::set_activity(flight::Activity activity) {
  activity_ = activity;
  if (recorder_ != nullptr) recorder_->set_activity(activity);
}

engine::OpListener& FlightLog::steps(uint64_t before) {
  steps_.step_before = before;
  return steps_;
}

void FlightLog::begin(const engine::CommCall& call, uint64_t step) {
  if (recorder_ == nullptr) return;
  running_[call.group] = recorder_->begin(call.group, static_cast<uint8_t>(call.kind), call.bytes(), step,
                                          asynchronous_ ? flight::State::kQueued : flight::State::kRunning);
}

void FlightLog::Listener::before(const engine::Op& op, uint64_t run) {
  if (op.comm) log_->begin(*op.comm, step(run));
  if (!log_->asynchronous_) {
    op.comm ? log_->clock_.enter_call(flight::now_ns) : log_->clock_.enter_work(flight::now_ns);
  }
  fault_point(op.comm ? "rank.call" : "rank.op").IgnoreError();
}

void FlightLog::Listener::after(const engine::Op& op, bool good) {
  if (log_->asynchronous_) return;
  op.comm ? log_->clock_.leave_call(flight::now_ns) : log_->clock_.leave_work(flight::now_ns);
  if (log_->recorder_ == nullptr || !good) return;
  op.comm ? log_->recorder_->done(log_->running_[op.comm->group]) : log_->recorder_->beat();
}

void FlightLog::Listener::replayed(const engine::Program& program, uint64_t run) {
  if (program_ != &program) {
    program_ = &program;
    calls_.clear();
    for (const engine::Op& op : program.ops()) {
      if (op.comm) calls_.push_back(*op.comm);
    }
  }
  for (const engine::CommCall& call : calls_) log_->begin(call, step(run));
}

void FlightLog::submitted() {
  if (recorder_ == nullptr || !asynchronous_) return;
  marks_.push_back(recorder_->next());
  recorder_->beat();
}

void FlightLog::finished_one() {
  if (recorder_ == nullptr || !asynchronous_ || marks_.empty()) return;
  recorder_->done_before(marks_.front());
  marks_.pop_front();
}

void FlightLog::finished_all() {
  if (recorder_ == nullptr || !asynchronous_) return;
  marks_.clear();
  recorder_->done_before(recorder_->next());
}

std::optional<double> FlightLog::waited() {
  if (asynchronous_ || running_.empty()) return std::nullopt;
  const uint64_t now = clock_.waited(flight::now_ns());
  return static_cast<double>(now - std::exchange(waited_, now)) * 1e-9;
}

}  // namespace telar::train
