#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

class ProfilingExecutor final : public Executor {
 public:
  ProfilingExecutor(const Program& program, const Plan& plan, backend::Device& device,
                    std::vector<backend::Communicator*> groups)
      : Executor(program, plan, device, std::move(groups)) {}

  absl::Status prepare() {
    absl::Status status = check_program();
    if (status.ok()) status = allocate_arenas();
    if (!status.ok()) return status;
    for (size_t i = 0; i <= program_.ops().size(); ++i) {
      absl::StatusOr<std::unique_ptr<backend::Event>> event = device_.create_timed_event();
      if (!event.ok()) return event.status();
      events_.push_back(*std::move(event));
    }
    for (OpId op = 0; op < program_.ops().size(); ++op) {
      work_.emplace_back([this, op](backend::Stream& stream) { return run_op(op, context_, stream); });
    }
    end_ = [this](backend::Stream&) {  // Not reached when an op failed.
      count_good_run();
      return absl::OkStatus();
    };
    absl::StatusOr<std::unique_ptr<backend::Stream>> stream = device_.create_stream("profiling", true);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    return absl::OkStatus();
  }

  absl::Status submit() override {
    absl::Status status = check_bound();
    if (!status.ok()) return status;
    stream_->record(*events_.front());
    for (OpId op = 0; op < work_.size(); ++op) {
      pass_gate(op, *stream_);
      stream_->submit(work_[op]);
      stream_->record(*events_[op + 1]);
    }
    stream_->submit(end_);
    return absl::OkStatus();
  }
  absl::Status wait() override { return stream_->synchronize(); }
  backend::Stream& origin() override { return *stream_; }

  absl::StatusOr<std::vector<double>> op_seconds() override {
    std::vector<double> seconds;
    for (size_t op = 0; op < work_.size(); ++op) {
      const absl::StatusOr<double> one = device_.seconds_between(*events_[op], *events_[op + 1]);
      if (!one.ok()) return one.status();
      seconds.push_back(*one);
    }
    return seconds;
  }

 private:
  std::vector<std::unique_ptr<backend::Event>> events_;              // Before the first op, then one behind each.
  std::vector<std::function<absl::Status(backend::Stream&)>> work_;  // By OpId.
  std::function<absl::Status(backend::Stream&)> end_;
  std::unique_ptr<backend::Stream> stream_;  // Last: gone before what its work touches.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> create_profiling_executor(const Program& program, const Plan& plan,
                                                                    backend::Device& device,
                                                                    std::vector<backend::Communicator*> groups) {
  auto executor = std::make_unique<ProfilingExecutor>(program, plan, device, std::move(groups));
  absl::Status status = executor->prepare();
  if (!status.ok()) return status;
  return executor;
}

}  // namespace telar::engine
