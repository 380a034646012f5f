#include <atomic>
#include <mutex>

#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

// One host thread issues all ops in program order, so every wait follows its record. After a failure the ops that are
// already issued become no-ops, but their records still happen: no lane is left waiting.
class LaneExecutor final : public Executor {
 public:
  LaneExecutor(const Program& program, const Plan& plan, backend::Device& device,
               std::vector<backend::Communicator*> groups)
      : Executor(program, plan, device, std::move(groups)) {}

  absl::Status prepare() {
    absl::Status status = check_program();
    if (status.ok()) status = allocate_arenas();
    if (!status.ok()) return status;
    for (uint32_t i = 0; i < plan_.events; ++i) {
      absl::StatusOr<std::unique_ptr<backend::Event>> event = device_.create_event();
      if (!event.ok()) return event.status();
      events_.push_back(*std::move(event));
    }
    for (OpId op = 0; op < program_.ops().size(); ++op) {
      work_.emplace_back([this, op](backend::Stream& stream) { return work(op, stream); });
    }
    for (const Lane& lane : plan_.lanes) {
      absl::StatusOr<std::unique_ptr<backend::Stream>> stream =
          device_.create_stream(lane.to_string(), lane.kind == LaneKind::kCompute);
      if (!stream.ok()) return stream.status();
      streams_.push_back(*std::move(stream));
    }
    return absl::OkStatus();
  }

  absl::Status run() override {
    absl::Status status = check_bound();
    if (!status.ok()) return status;
    for (OpId op = 0; op < plan_.ops.size() && !failed_.load(std::memory_order_relaxed); ++op) {
      const PlannedOp& planned = plan_.ops[op];
      backend::Stream& stream = *streams_[planned.lane];
      for (uint32_t event : planned.waits) stream.wait(*events_[event]);
      stream.submit(work_[op]);
      if (planned.record != kNoEvent) stream.record(*events_[planned.record]);
    }
    for (const std::unique_ptr<backend::Stream>& stream : streams_) status.Update(stream->synchronize());
    // The first to fail is the cause; what the streams latched may be a consequence.
    const std::lock_guard lock(mutex_);
    return first_error_.ok() ? status : first_error_;
  }

 private:
  absl::Status work(OpId op, backend::Stream& stream) {
    if (failed_.load(std::memory_order_relaxed)) return absl::OkStatus();
    absl::Status status = run_op(op, context_, stream);
    if (!status.ok()) {
      const std::lock_guard lock(mutex_);
      first_error_.Update(status);
      failed_.store(true, std::memory_order_relaxed);
    }
    return status;
  }

  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  absl::Status first_error_;                                         // Guarded by mutex_.
  std::vector<std::function<absl::Status(backend::Stream&)>> work_;  // By OpId.
  std::vector<std::unique_ptr<backend::Event>> events_;
  std::vector<std::unique_ptr<backend::Stream>> streams_;  // By lane. Last: gone before what their work touches.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> create_lane_executor(const Program& program, const Plan& plan,
                                                               backend::Device& device,
                                                               std::vector<backend::Communicator*> groups) {
  auto executor = std::make_unique<LaneExecutor>(program, plan, device, std::move(groups));
  absl::Status status = executor->prepare();
  if (!status.ok()) return status;
  return executor;
}

}  // namespace telar::engine
