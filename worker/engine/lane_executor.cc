#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

// The one place that reads it.
bool graphs_allowed() {
  const char* wanted = std::getenv("TELAR_GRAPHS");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

// One host thread issues all ops in program order, so every wait follows its record. A run forks from the first lane's
// stream and joins it again, so that runs follow each other in that stream's order, and a capture that begins there
// sees all of it. After a failure the ops that are already issued become no-ops, but their records still happen: no
// lane is left waiting.
class LaneExecutor final : public Executor {
 public:
  LaneExecutor(const Program& program, const Plan& plan, backend::Device& device,
               std::vector<backend::Communicator*> groups, LaneOptions options)
      : Executor(program, plan, device, std::move(groups)), graphs_(options.graphs && graphs_allowed()) {}

  absl::Status prepare() {
    absl::Status status = check_program();
    if (status.ok()) status = allocate_arenas();
    if (status.ok()) status = create_events(plan_.events, events_);
    if (status.ok()) status = create_events(1, forks_);
    if (status.ok()) status = create_events(plan_.lanes.size(), joins_);
    if (!status.ok()) return status;
    for (OpId op = 0; op < program_.ops().size(); ++op) {
      work_.emplace_back([this, op](backend::Stream& stream) { return work(op, stream); });
    }
    end_ = [this](backend::Stream&) {
      if (!failed_.load(std::memory_order_acquire)) count_good_run();
      return absl::OkStatus();
    };
    std::vector<Lane> lanes = plan_.lanes;
    if (lanes.empty()) lanes.push_back({LaneKind::kCompute, 0});
    for (const Lane& lane : lanes) {
      absl::StatusOr<std::unique_ptr<backend::Stream>> stream =
          device_.create_stream(lane.to_string(), lane.kind == LaneKind::kCompute);
      if (!stream.ok()) return stream.status();
      streams_.push_back(*std::move(stream));
    }
    graph_state_.why_not = graphs_ ? "the first run goes op by op" : "turned off";
    return absl::OkStatus();
  }

  absl::Status submit() override { return enqueue(nullptr); }
  absl::Status submit_observed(RunObserver& observer) override { return enqueue(&observer); }

  absl::Status wait() override {
    absl::Status status;
    for (const std::unique_ptr<backend::Stream>& stream : streams_) status.Update(stream->synchronize());
    // The first to fail is the cause; what the streams latched may be a consequence.
    absl::Status cause = first_error();
    if (!cause.ok() || status.ok()) return cause;
    return absl::Status(status.code(), absl::StrCat("found behind the op that caused it, which only a run op by op can "
                                                    "name (telar-rank --executor sequential): ",
                                                    status.message()));
  }

  backend::Stream& origin() override { return *streams_[0]; }  // The compute lane if there is one: lanes are ascending.

 private:
  absl::Status enqueue(RunObserver* observer) {
    if (failed_.load(std::memory_order_acquire)) return first_error();
    if (rebound_) drop_graph();
    absl::Status status = check_bound();
    if (!status.ok()) return status;
    if (graphs_ && warm_ && graph_ == nullptr && observer == nullptr) capture();
    if (graph_ != nullptr && observer == nullptr) {
      graph_->launch(origin());
    } else {
      issue(observer);
      warm_ = true;
    }
    origin().submit(end_);
    return first_error();
  }

  absl::Status create_events(size_t count, std::vector<std::unique_ptr<backend::Event>>& events) {
    for (size_t i = 0; i < count; ++i) {
      absl::StatusOr<std::unique_ptr<backend::Event>> event = device_.create_event();
      if (!event.ok()) return event.status();
      events.push_back(*std::move(event));
    }
    return absl::OkStatus();
  }

  void issue(RunObserver* observer) {
    if (observer != nullptr) observer->begin(origin());
    if (streams_.size() > 1) origin().record(*forks_[0]);
    for (size_t lane = 1; lane < streams_.size(); ++lane) streams_[lane]->wait(*forks_[0]);
    for (OpId op = 0; op < plan_.ops.size() && !failed_.load(std::memory_order_relaxed); ++op) {
      const PlannedOp& planned = plan_.ops[op];
      backend::Stream& stream = *streams_[planned.lane];
      for (uint32_t event : planned.waits) stream.wait(*events_[event]);
      if (observer != nullptr) observer->before(op, stream);
      stream.submit(work_[op]);
      if (observer != nullptr) observer->after(op, stream);
      if (planned.record != kNoEvent) stream.record(*events_[planned.record]);
    }
    for (size_t lane = 1; lane < streams_.size(); ++lane) {
      streams_[lane]->record(*joins_[lane]);
      origin().wait(*joins_[lane]);
    }
    if (observer != nullptr) observer->end(origin());
  }

  void drop_graph() {
    graph_.reset();
    warm_ = false;
    if (graph_state_.captured) graph_state_ = {false, 0, "addresses have changed"};
  }

  // An op that fails in here has not run, and counts as an op that cannot be captured.
  void capture() {
    absl::StatusOr<std::unique_ptr<backend::Graph>> graph = device_.capture(origin(), [this] {
      issue(nullptr);
      const std::lock_guard lock(mutex_);
      failed_.store(false, std::memory_order_relaxed);
      return std::exchange(first_error_, absl::OkStatus());
    });
    if (graph.ok()) {
      graph_ = *std::move(graph);
      graph_state_ = {true, graph_->nodes(), ""};
    } else {
      graphs_ = false;
      graph_state_ = {false, 0, std::string(graph.status().message())};
    }
  }

  absl::Status work(OpId op, backend::Stream& stream) {
    if (failed_.load(std::memory_order_relaxed)) return absl::OkStatus();
    absl::Status status = run_op(op, context_, stream);
    if (!status.ok()) {
      const std::lock_guard lock(mutex_);
      first_error_.Update(status);
      failed_.store(true, std::memory_order_release);
    }
    return status;
  }

  absl::Status first_error() {
    const std::lock_guard lock(mutex_);
    return first_error_;
  }

  bool graphs_;        // To be tried.
  bool warm_ = false;  // A run has been issued op by op with the present addresses.
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  absl::Status first_error_;                                         // Guarded by mutex_.
  std::vector<std::function<absl::Status(backend::Stream&)>> work_;  // By OpId.
  std::function<absl::Status(backend::Stream&)> end_;
  std::vector<std::unique_ptr<backend::Event>> events_, forks_, joins_;
  std::unique_ptr<backend::Graph> graph_;
  std::vector<std::unique_ptr<backend::Stream>> streams_;  // By lane. Last: gone before what their work touches.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> create_lane_executor(const Program& program, const Plan& plan,
                                                               backend::Device& device,
                                                               std::vector<backend::Communicator*> groups,
                                                               LaneOptions options) {
  auto executor = std::make_unique<LaneExecutor>(program, plan, device, std::move(groups), options);
  absl::Status status = executor->prepare();
  if (!status.ok()) return status;
  return executor;
}

}  // namespace telar::engine
