#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

// The one place that reads it.
bool graphs_allowed() {
  const char* wanted = std::getenv("TELAR_GRAPHS");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

// As above.
MarkDensity density_of(MarkDensity density) {
  const char* wanted = std::getenv("TELAR_MARKS");
  if (wanted == nullptr) return density;
  if (std::string_view(wanted) == "0") return MarkDensity::kNone;
  return std::string_view(wanted) == "all" ? MarkDensity::kAll : density;
}

// This thread is in a capture: ops that it runs are written down, not done.
thread_local bool in_capture = false;

// One host thread issues all ops in program order, so every wait follows its record. A run forks from the first lane's
// stream and joins it again, so that runs follow each other in that stream's order, and a capture that begins there
// sees all of it. After a failure the ops that are already issued become no-ops, but their records still happen: no
// lane is left waiting.
class LaneExecutor final : public Executor {
 public:
  LaneExecutor(const Program& program, const Plan& plan, backend::Device& device,
               std::vector<backend::Communicator*> groups, LaneOptions options)
      : Executor(program, plan, device, std::move(groups)),
        graphs_(options.graphs && graphs_allowed()),
        density_(density_of(options.marks)) {}

  absl::Status prepare() {
    absl::Status status = check_program();
    if (status.ok()) status = allocate_arenas();
    if (status.ok()) status = create_events(plan_.events, events_);
    if (status.ok()) status = create_events(1, forks_);
    if (status.ok()) status = create_events(plan_.lanes.size(), joins_);
    if (!status.ok()) return status;
    auto marks = RunMarks::create(program_, plan_, device_, density_);
    if (!marks.ok()) return marks.status();
    marks_ = *std::move(marks);
    recorder_.resize(plan_.events);
    for (OpId op = 0; op < program_.ops().size(); ++op) {
      work_.emplace_back([this, op](backend::Stream& stream) { return work(op, stream); });
      if (const uint32_t event = plan_.ops[op].record; event != kNoEvent) recorder_[event] = op;
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
    const absl::Status cause = first_error();
    if (cause.ok() && status.ok()) return cause;
    return with_whereabouts(cause.ok() ? status : cause);
  }
  uint64_t failed_run() const override { return failed_run_; }

  backend::Stream& origin() override { return *streams_[0]; }  // The compute lane if there is one: lanes are ascending.

 private:
  absl::Status enqueue(RunObserver* observer) {
    if (failed_.load(std::memory_order_acquire)) return first_error();
    if (rebound_) drop_graph();
    absl::Status status = check_bound();
    if (!status.ok()) return status;
    if (graphs_ && warm_ && pieces_.empty() && observer == nullptr) capture();
    const bool each_op = pieces_.empty() && observer == nullptr;
    if (marks_ != nullptr) marks_->begin(++runs_, each_op, origin());
    if (!pieces_.empty() && observer == nullptr) {
      for (const Piece& piece : pieces_) {
        if (piece.behind_gate) gate_->pass(origin());
        piece.graph->launch(origin());
      }
      if (listener_ != nullptr) listener_->replayed(program_, good_runs() + 1);
    } else {
      issue({0, static_cast<OpId>(plan_.ops.size())}, observer, each_op);
      warm_ = true;
    }
    origin().submit(end_);
    return first_error();
  }

  // An error of the device itself gets in front what was running: whoever found it may have come later. Those of an
  // op's call stay as they are.
  absl::Status with_whereabouts(const absl::Status& error) {
    const OpId finder = failed_op();
    if (!absl::IsInternal(error) || (marks_ == nullptr && finder != kNoOp)) return error;
    const auto prefixed = [&](absl::string_view where, absl::string_view joint) {
      return absl::Status(error.code(), absl::StrCat(where, joint, error.message()));
    };
    if (marks_ == nullptr) {
      return prefixed("found behind the op that caused it, which only a run op by op can name",
                      " (telar-rank --executor sequential): ");
    }
    const RunMarks::Place place = marks_->place();
    if (finder != kNoOp && place.run == runs_ && place.ranges[plan_.ops[finder].lane].holds(finder)) return error;
    failed_run_ = place.run;
    const std::string ops = marks_->describe(place);
    return prefixed(ops.empty() ? "while no op was running" : absl::StrCat("at ", ops),
                    finder == kNoOp ? ": " : ", found by ");
  }

  absl::Status create_events(size_t count, std::vector<std::unique_ptr<backend::Event>>& events) {
    for (size_t i = 0; i < count; ++i) {
      absl::StatusOr<std::unique_ptr<backend::Event>> event = device_.create_event();
      if (!event.ok()) return event.status();
      events.push_back(*std::move(event));
    }
    return absl::OkStatus();
  }

  // Ops [begin, end) of the list.
  struct Part {
    OpId begin = 0, end = 0;
  };

  // Forks, issues the part and joins. What its ops wait for of earlier parts has been joined before.
  void issue(Part part, RunObserver* observer, bool mark_each_op) {
    if (observer != nullptr) observer->begin(origin());
    if (streams_.size() > 1) origin().record(*forks_[0]);
    for (size_t lane = 1; lane < streams_.size(); ++lane) streams_[lane]->wait(*forks_[0]);
    for (OpId op = part.begin; op < part.end && !failed_.load(std::memory_order_relaxed); ++op) {
      const PlannedOp& planned = plan_.ops[op];
      backend::Stream& stream = *streams_[planned.lane];
      for (uint32_t event : planned.waits) {
        if (recorder_[event] >= part.begin) stream.wait(*events_[event]);
      }
      if (observer != nullptr) observer->before(op, stream);
      pass_gate(op, stream);
      stream.submit(work_[op]);
      if (observer != nullptr) observer->after(op, stream);
      if (marks_ != nullptr) marks_->behind(op, mark_each_op, stream);
      if (planned.record != kNoEvent) stream.record(*events_[planned.record]);
    }
    for (size_t lane = 1; lane < streams_.size(); ++lane) {
      streams_[lane]->record(*joins_[lane]);
      origin().wait(*joins_[lane]);
    }
    if (observer != nullptr) observer->end(origin());
  }

  void drop_graph() {
    pieces_.clear();
    warm_ = false;
    if (graph_state_.captured) graph_state_ = {false, 0, "addresses have changed"};
  }

  // Whole, or cut at the gate: a graph cannot wait for an event that is recorded anew between its launches.
  std::vector<Part> parts() const {
    const auto end = static_cast<OpId>(plan_.ops.size());
    for (OpId op = 0; gate_ != nullptr && op < end; ++op) {
      if (program_.ops()[op].gate) return {{0, op}, {op + 1, end}};
    }
    return {{0, end}};
  }

  // An op that fails in here has not run, and counts as an op that cannot be captured.
  void capture() {
    std::vector<Piece> pieces;
    size_t nodes = 0;
    for (const Part& part : parts()) {
      absl::StatusOr<std::unique_ptr<backend::Graph>> graph = device_.capture(origin(), [this, part] {
        in_capture = true;
        issue(part, nullptr, false);
        in_capture = false;
        const std::lock_guard lock(mutex_);
        failed_.store(false, std::memory_order_relaxed);
        failed_op_ = kNoOp;
        return std::exchange(first_error_, absl::OkStatus());
      });
      if (!graph.ok()) {
        graphs_ = false;
        graph_state_ = {false, 0, std::string(graph.status().message())};
        return;
      }
      nodes += (*graph)->nodes();
      pieces.push_back({*std::move(graph), part.begin > 0});
    }
    pieces_ = std::move(pieces);
    graph_state_ = {true, nodes, ""};
  }

  absl::Status work(OpId op, backend::Stream& stream) {
    if (failed_.load(std::memory_order_relaxed)) return absl::OkStatus();
    absl::Status status = run_op(op, context_, stream, in_capture);
    if (!status.ok()) {
      const std::lock_guard lock(mutex_);
      if (first_error_.ok()) failed_op_ = op;
      first_error_.Update(status);
      failed_.store(true, std::memory_order_release);
    }
    return status;
  }

  absl::Status first_error() {
    const std::lock_guard lock(mutex_);
    return first_error_;
  }
  OpId failed_op() {
    const std::lock_guard lock(mutex_);
    return failed_op_;
  }

  bool graphs_;  // To be tried.
  const MarkDensity density_;
  bool warm_ = false;  // A run has been issued op by op with the present addresses.
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  absl::Status first_error_;                                         // Guarded by mutex_.
  OpId failed_op_ = kNoOp;                                           // Whose error that is; guarded by mutex_.
  std::vector<std::function<absl::Status(backend::Stream&)>> work_;  // By OpId.
  std::function<absl::Status(backend::Stream&)> end_;
  std::vector<std::unique_ptr<backend::Event>> events_, forks_, joins_;
  std::vector<OpId> recorder_;  // By event: the op that it is recorded behind.
  // A graph of a part of the run.
  struct Piece {
    std::unique_ptr<backend::Graph> graph;
    bool behind_gate = false;
  };
  std::unique_ptr<RunMarks> marks_;  // Null: the device leaves none.
  uint64_t runs_ = 0;                // That left some.
  uint64_t failed_run_ = 0;
  std::vector<Piece> pieces_;                              // Of a run, in order; empty: not captured.
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
