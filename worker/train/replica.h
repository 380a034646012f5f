// One rank's share of the model on its device: the planned programs, the memory behind them, and the calls that the
// training loop makes.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/executor.h"
#include "worker/engine/step_buffers.h"
#include "worker/plan/programs.h"
#include "worker/train/flight_log.h"
#include "worker/train/snapshot.h"

namespace telar::train {

// A recorded program, its plan and its executor; at a fixed address, since each refers to the one before.
template <typename Recorded>
struct Prepared {
  std::unique_ptr<Recorded> recorded;
  engine::Plan plan;
  std::unique_ptr<engine::Executor> executor;
};

struct StepResult {
  double loss = 0;
  double grad_norm = 0;
  double valid_tokens = 0;
  double loss_scale = 1;  // Behind the step: for the next one.
  bool skipped = false;   // Nothing was updated, as the gradient was not finite.
  bool stop = false;      // Some rank asked to stop.
  double held = 0;        // Seconds that its update waited for the snapshot behind the step before.
};

// Steps are asynchronous: submit_step() enqueues one and returns, finish_step() waits for the oldest. Two may be in
// flight, so that the device has its next step before the host has looked at the last one. All other calls need the
// replica idle (FAILED_PRECONDITION).
// Threads: one caller.
class Replica {
 public:
  ~Replica();
  enum class Execution : uint8_t { kLanes, kSequential, kProfiling };
  // `groups` by engine::GroupId; `device`, groups and `flight`, if there is one, must outlive the replica. Weights are
  // zero until init() or a restore through masters().
  static absl::StatusOr<std::unique_ptr<Replica>> create(plan::RunShape shape, backend::Device& device,
                                                         std::vector<backend::Communicator*> groups,
                                                         Execution execution, FlightLog* flight = nullptr);

  const plan::RunShape& shape() const { return shape_; }
  const engine::Plan& train_plan() const { return train_->plan; }
  // Device memory that steps use beside the plan's.
  uint64_t staging_bytes() const { return buffers_->device_bytes(); }
  // The stream whose order training steps keep; for events around them.
  backend::Stream& step_stream() { return train_->executor->origin(); }
  const engine::Program& train_program() const { return train_->recorded->program; }
  // Of the last step submitted, by OpId; only with Execution::kProfiling.
  absl::StatusOr<std::vector<double>> op_seconds() const { return train_->executor->op_seconds(); }

  // First weights, from the spec's seed.
  absl::Status init();
  // Call on all ranks after the masters were written from outside: rounds them to the compute precision, and gathers.
  absl::Status masters_changed();

  // Optimizer step `step` (1 is the first) on this rank's part of the global batch, [micro_batches, micro_tokens].
  // `starts`, only and always with spec.data.reset_at_documents: see data::Row. The spans are free when it returns.
  // Errors, here and from finish_step(), name the step ("step 12: op ..."), and end the replica.
  absl::Status submit_step(uint64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets, bool stop,
                           std::span<const int32_t> starts = {});
  // The next step that is submitted goes op by op under the observer's eyes; only with Execution::kLanes.
  void observe_next_step(engine::RunObserver& observer) { observer_ = &observer; }
  // Of the oldest step in flight.
  absl::StatusOr<StepResult> finish_step();
  int in_flight() const { return static_cast<int>(submitted_ - finished_); }
  // Both.
  absl::StatusOr<StepResult> train_step(uint64_t step, std::span<const int32_t> inputs,
                                        std::span<const int32_t> targets, bool stop,
                                        std::span<const int32_t> starts = {});
  const engine::GraphState& graph_state() const { return train_->executor->graph_state(); }
  // Sum of the loss over the valid targets of all replicas' micro-batches, and their number.
  absl::StatusOr<std::pair<double, double>> eval_batch(std::span<const int32_t> inputs,
                                                       std::span<const int32_t> targets,
                                                       std::span<const int32_t> starts = {}, bool stop = false);
  // Logits [vocab] of what follows ids[row], on every rank; ids beyond `row` do not matter. Without `starts` they are
  // one document.
  absl::StatusOr<std::vector<float>> next_logits(std::span<const int32_t> ids, int32_t row,
                                                 std::span<const int32_t> starts = {}, bool stop = false);
  // Some rank asked to stop in the last of the two calls above: the same on all ranks.
  bool asked_to_stop() const { return asked_to_stop_; }

  // Of one kind, host copies of what this rank's optimizer state holds of the logical tensors: for checkpoints and
  // tests. Gradients are as the last step left them, its loss scale times too large.
  enum class Kind : uint8_t { kMaster, kExpAvg, kExpAvgSq, kGrad };
  std::vector<parallel::Piece> pieces() const { return shape_.pieces(); }
  absl::Status read(Kind kind, const parallel::Piece& piece, std::span<float> out) const;
  absl::Status write(Kind kind, const parallel::Piece& piece, std::span<const float> values);
  // Takes the host memory that snapshots of these of pieces() need, so many bytes; once, before the first step.
  absl::Status prepare_snapshots(std::span<const parallel::Piece> share);
  uint64_t snapshot_bytes(std::span<const parallel::Piece> share) const;
  // Behind the last step that was submitted: begins to copy masters, moments (by their number in Kind) and the step
  // state. Steps go on meanwhile. Whoever reads the snapshot before must be done.
  absl::Status take_snapshot();
  Snapshot* snapshot() { return snapshot_.get(); }  // Null before prepare_snapshots().

  // What the optimizer counts, backend::kStepStates floats, and behind that, with delayed FP8 scales, the history of
  // greatest magnitudes (RunShape::fp8.delayed); a new replica has counted and seen nothing and has its spec's loss
  // scale.
  size_t step_state_size() const { return static_cast<size_t>(train_->recorded->step_state.elements()); }
  absl::Status read_step_state(std::span<float> out) const;
  absl::Status write_step_state(std::span<const float> values);

 private:
  Replica(plan::RunShape shape, backend::Device& device, std::vector<backend::Communicator*> groups,
          Execution execution, FlightLog* flight)
      : shape_(std::move(shape)), device_(device), groups_(std::move(groups)), execution_(execution), flight_(flight) {}

  // With no step in flight.
  absl::Status run_alone(engine::Executor& executor);
  // Runs a program with a `stop` of its own; whether any rank asked.
  template <typename Recorded>
  absl::Status run_stoppable(const Prepared<Recorded>& prepared, bool stop);
  template <typename Recorded>
  absl::StatusOr<std::unique_ptr<Prepared<Recorded>>> prepare(std::unique_ptr<Recorded> recorded) const;
  // Points a program's external flat tensors at the training program's memory.
  template <typename Recorded>
  void bind(Prepared<Recorded>& other, const parallel::FlatTensors& external, const parallel::FlatTensors& owned) const;
  absl::Status build();
  absl::Status build_buffers();
  absl::Status check_idle(const char* call) const;
  absl::Status check_writable(const char* call);
  absl::Status failed_step(const absl::Status& seen);
  absl::StatusOr<Prepared<plan::LogitsProgram>*> logits_program();
  const parallel::FlatTensors& tensors(Kind kind) const;
  engine::Tensor tensor_of(Kind kind, const parallel::Piece& piece) const;

  const plan::RunShape shape_;
  backend::Device& device_;
  const std::vector<backend::Communicator*> groups_;
  const Execution execution_;
  FlightLog* const flight_;
  engine::RunObserver* observer_ = nullptr;
  std::unique_ptr<Prepared<plan::TrainProgram>> train_;
  std::unique_ptr<engine::StepBuffers> buffers_;
  std::unique_ptr<Snapshot> snapshot_;     // Its gate is the executor's.
  uint64_t held_ = 0;                      // The step, by count, that found the gate closed last.
  uint64_t submitted_ = 0, finished_ = 0;  // Steps, counted from 1.
  std::array<uint64_t, engine::StepBuffers::kSlots> step_numbers_{};  // By count, as the slots.
  std::unique_ptr<Prepared<plan::EvalProgram>> eval_;
  std::unique_ptr<Prepared<plan::LogitsProgram>> logits_;  // Made at its first use.
  bool asked_to_stop_ = false;
};

}  // namespace telar::train
