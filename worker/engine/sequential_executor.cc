#include <numeric>

#include "absl/strings/str_cat.h"
#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

// Each op is synchronized before the next is issued, so that an error of an asynchronous device has a name, too.
class SequentialExecutor final : public Executor {
 public:
  SequentialExecutor(const Program& program, const Plan& plan, backend::Device& device,
                     std::vector<backend::Communicator*> groups, std::vector<OpId> order)
      : Executor(program, plan, device, std::move(groups)), order_(std::move(order)) {}

  absl::Status prepare() {
    absl::Status status = check_program();
    if (status.ok()) status = check_order();
    if (status.ok()) status = allocate_arenas();
    if (!status.ok()) return status;
    absl::StatusOr<std::unique_ptr<backend::Stream>> stream = device_.create_stream("sequential", true);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    work_ = [this](backend::Stream& s) {
      absl::Status result = run_op(current_, context_, s);
      described_ = !result.ok();
      return result;
    };
    return absl::OkStatus();
  }

  absl::Status submit() override {
    if (!error_.ok()) return error_;
    absl::Status status = check_bound();
    if (!status.ok()) return status;
    status = stream_->synchronize();  // What others enqueued on origin().
    if (!status.ok()) return error_ = status;
    for (OpId op : order_) {
      current_ = op;
      pass_gate(op, *stream_);
      stream_->submit(work_);
      status = stream_->synchronize();
      if (!status.ok()) return error_ = described_ ? status : describe(op, status);
    }
    count_good_run();
    return absl::OkStatus();
  }
  absl::Status wait() override {
    const absl::Status status = stream_->synchronize();
    return error_.ok() ? status : error_;
  }
  backend::Stream& origin() override { return *stream_; }

 private:
  absl::Status check_order() {
    const size_t ops = program_.ops().size();
    if (order_.empty()) {
      order_.resize(ops);
      std::iota(order_.begin(), order_.end(), 0);
      return absl::OkStatus();
    }
    std::vector<bool> done(ops, false);
    for (OpId op : order_) {
      if (op >= ops || done[op]) return absl::InvalidArgumentError(absl::StrCat("order: op ", op, " twice or unknown"));
      for (OpId before : plan_.predecessors[op]) {
        if (!done[before]) {
          return absl::InvalidArgumentError(absl::StrCat("order: op '", program_.ops()[op].name, "' comes before '",
                                                         program_.ops()[before].name, "', which it depends on"));
        }
      }
      done[op] = true;
    }
    if (order_.size() == ops) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("order: ", order_.size(), " of ", ops, " ops"));
  }

  std::vector<OpId> order_;
  OpId current_ = 0;
  bool described_ = false;  // The error is of the op's call, not one that the device found later.
  absl::Status error_;
  std::function<absl::Status(backend::Stream&)> work_;
  std::unique_ptr<backend::Stream> stream_;  // Last: gone before what its work touches.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> create_sequential_executor(const Program& program, const Plan& plan,
                                                                     backend::Device& device,
                                                                     std::vector<backend::Communicator*> groups,
                                                                     std::vector<OpId> order) {
  auto executor = std::make_unique<SequentialExecutor>(program, plan, device, std::move(groups), std::move(order));
  absl::Status status = executor->prepare();
  if (!status.ok()) return status;
  return executor;
}

}  // namespace telar::engine
