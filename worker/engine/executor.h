// Runs a planned program on a device, again and again.
//
// submit() enqueues one run of all ops and returns; wait() blocks until all that was submitted is done. Runs are in
// order on the device, not on the host: a run starts when the one before has ended on every lane. They also keep the
// order of origin(), so whoever wants to do something between two runs enqueues it there.
//
// The program and plan must outlive the executor. Arenas are allocated once, in create(), and zeroed.
// Threads: one caller at a time.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/gate.h"
#include "worker/engine/op_listener.h"
#include "worker/engine/plan.h"
#include "worker/engine/run_marks.h"

namespace telar::engine {

// How runs reach the device.
struct GraphState {
  bool captured = false;  // Whole runs, by a graph of the device; else op by op.
  size_t nodes = 0;
  std::string why_not = "this executor runs op by op";  // Empty when captured.
};

// Looks on while a run is enqueued: what it enqueues is part of the run. OpTimer is one. Called by the thread that
// submits.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void begin(backend::Stream& origin) = 0;          // Before all ops.
  virtual void before(OpId op, backend::Stream& lane) = 0;  // The op's waits are enqueued.
  virtual void after(OpId op, backend::Stream& lane) = 0;
  virtual void end(backend::Stream& origin) = 0;  // Behind all ops.
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Gives an external buffer its address. Every external buffer needs one before the first run; a later change is
  // allowed when nothing is in flight.
  void bind(const Tensor& external, std::byte* address);
  std::byte* address(const Tensor& tensor) const { return addresses_.at(tensor); }

  // Whether the program's gate is closed decides `gate` from the next run on; null: it is always open. When nothing is
  // in flight. The checking executor passes closed gates.
  void set_gate(Gate* gate);
  // Null: none. Before the first run. It must outlive the executor.
  void set_listener(OpListener* listener) { listener_ = listener; }

  // All ops once. An error, here or from wait(), ends the executor: nothing is enqueued any more.
  virtual absl::Status submit() = 0;
  // The same under the observer's eyes, always op by op; with no observer there is no trace of one. The lane executor
  // can; FAILED_PRECONDITION: this executor cannot.
  virtual absl::Status submit_observed(RunObserver&) {
    return absl::FailedPreconditionError("only the lane executor lets its runs be observed");
  }
  // Returns when all that was submitted is done: the first error, with the op's name in front. Of an error of the
  // device itself the sequential executor names the op, the lane executor those that may have been running
  // (run_marks.h).
  virtual absl::Status wait() = 0;
  absl::Status run() {
    const absl::Status status = submit(), done = wait();  // Also after an error: nothing may be in flight.
    return status.ok() ? done : status;
  }
  // The stream whose order runs keep.
  virtual backend::Stream& origin() = 0;
  virtual const GraphState& graph_state() const { return graph_state_; }
  // Runs that ended and in which no op failed; on a device that takes work and does it later, runs that were enqueued.
  // When an event behind a run on origin() is reached, the run is in this number, or it failed.
  uint64_t good_runs() const { return good_runs_.load(std::memory_order_acquire); }
  // The run in which the device itself failed, by count from 1; 0: it did not, or its run is not known. Behind wait().
  virtual uint64_t failed_run() const { return 0; }
  // By OpId: device seconds of the last run that each op took. FAILED_PRECONDITION: this executor takes no times.
  virtual absl::StatusOr<std::vector<double>> op_seconds() {
    return absl::FailedPreconditionError("only the profiling executor times its ops");
  }

 protected:
  Executor(const Program& program, const Plan& plan, backend::Device& device,
           std::vector<backend::Communicator*> groups);
  absl::Status allocate_arenas();
  // INVALID_ARGUMENT if an op has nothing to run or the plan is of another program.
  absl::Status check_program() const;
  // FAILED_PRECONDITION names an external buffer without an address. Cheap unless something was bound since.
  absl::Status check_bound();
  // Runs the op, with the listener told unless `recording`: a capture runs nothing. An error gets its description in
  // front.
  absl::Status run_op(OpId op, const RunContext& context, backend::Stream& stream, bool recording = false) const;
  absl::Status describe(OpId op, const absl::Status& status) const;
  // The stream goes through the gate if the op is one.
  void pass_gate(OpId op, backend::Stream& stream) {
    if (gate_ != nullptr && program_.ops()[op].gate) gate_->pass(stream);
  }
  void count_good_run() { good_runs_.fetch_add(1, std::memory_order_release); }

  const Program& program_;
  const Plan& plan_;
  backend::Device& device_;
  Addresses addresses_;
  bool rebound_ = true;  // An address, or the gate, changed since check_bound().
  Gate* gate_ = nullptr;
  OpListener* listener_ = nullptr;
  std::vector<backend::Communicator*> groups_;
  RunContext context_;
  GraphState graph_state_;

 private:
  std::array<std::unique_ptr<backend::Memory>, kMemoryClasses> arenas_;
  std::atomic<uint64_t> good_runs_{0};
};

// One op after another on one stream, each waited for: the oracle, and the debugger's friend. submit() does it all.
// `order`, when given, must be a topological order of the plan's edges; every such order gives the same bytes.
absl::StatusOr<std::unique_ptr<Executor>> create_sequential_executor(const Program& program, const Plan& plan,
                                                                     backend::Device& device,
                                                                     std::vector<backend::Communicator*> groups,
                                                                     std::vector<OpId> order = {});

// One op after another on one stream, without waiting, and a timed event behind each: an op's time is from the event
// before to its own, so the times sum to the run. Nothing overlaps: collectives take their whole time.
absl::StatusOr<std::unique_ptr<Executor>> create_profiling_executor(const Program& program, const Plan& plan,
                                                                    backend::Device& device,
                                                                    std::vector<backend::Communicator*> groups);

struct LaneOptions {
  bool graphs = true;  // Where the device has them; TELAR_GRAPHS=0 in the environment turns them off everywhere.
  // Of graphs, where the device can leave marks; TELAR_MARKS in the environment overrides it: 0 none, all.
  MarkDensity marks = MarkDensity::kSome;
};

// A stream a lane, joined by the plan's events: what training runs on.
//
// The first run goes op by op, so that whatever the kernels tune or allocate is there. The second is captured into a
// graph of the device, which later runs replay, or into two with the gate between them, where one was set; after bind()
// that starts over. What cannot be captured goes op by op for good, and graph_state() says why.
absl::StatusOr<std::unique_ptr<Executor>> create_lane_executor(const Program& program, const Plan& plan,
                                                               backend::Device& device,
                                                               std::vector<backend::Communicator*> groups,
                                                               LaneOptions options = {});

// The sequential executor with its eyes open, for tests: finds ops that touch bytes which they do not declare. Every op
// runs twice, each time in memory of its own where all bytes are poison but those that it declares to read; a byte
// outside the declared writes that changes, or an outcome that depends on the poison, is an INTERNAL error that names
// op, buffer and byte. External buffers are not poisoned. Only for devices whose memory the host can touch; slow.
absl::StatusOr<std::unique_ptr<Executor>> create_checking_executor(const Program& program, const Plan& plan,
                                                                   backend::Device& device,
                                                                   std::vector<backend::Communicator*> groups);

}  // namespace telar::engine
