#include "worker/train/replica.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/model/parameters.h"
#include "worker/model/transformer.h"
#include "worker/optim/schedule.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

using engine::Tensor;

// What the host writes before a step and reads behind it, by place in the lists of build_buffers().
enum Input : size_t { kInputs, kTargets, kScalars, kStop, kStarts };
enum Output : size_t { kLoss, kGradNorm, kValid, kLossScale, kSkipped, kStopped };

template <typename T>
absl::Status upload(backend::Device& device, const engine::Executor& executor, const Tensor& tensor,
                    std::span<const T> values) {
  if (values.size_bytes() != tensor.bytes()) {
    return absl::InternalError(absl::StrCat("upload of ", values.size_bytes(), " bytes into ", tensor.bytes()));
  }
  return device.copy_to_device(values.data(), executor.address(tensor), tensor.bytes());
}

absl::StatusOr<float> scalar(backend::Device& device, const engine::Executor& executor, const Tensor& tensor) {
  float value = 0;
  const absl::Status status = device.copy_to_host(executor.address(tensor), &value, sizeof(value));
  if (!status.ok()) return status;
  return value;
}

// `count` elements of type T at `from`, widened.
template <typename T>
absl::StatusOr<std::vector<float>> read_floats(backend::Device& device, const std::byte* from, size_t count) {
  std::vector<T> raw(count);
  const absl::Status status = device.copy_to_host(from, raw.data(), count * sizeof(T));
  if (!status.ok()) return status;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(raw[i]);
  return values;
}

absl::StatusOr<std::vector<float>> read_as_floats(backend::Device& device, engine::DType dtype, const std::byte* from,
                                                  size_t count) {
  if (dtype == engine::DType::kBF16) return read_floats<backend::Bf16>(device, from, count);
  if (dtype == engine::DType::kF16) return read_floats<backend::F16>(device, from, count);
  return read_floats<float>(device, from, count);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::create(plan::RunShape shape, backend::Device& device,
                                                         std::vector<backend::Communicator*> groups,
                                                         Execution execution, FlightLog* flight) {
  std::unique_ptr<Replica> replica(new Replica(std::move(shape), device, std::move(groups), execution, flight));
  const absl::Status status = replica->build();
  if (!status.ok()) return status;
  return replica;
}

template <typename Recorded>
absl::StatusOr<std::unique_ptr<Prepared<Recorded>>> Replica::prepare(std::unique_ptr<Recorded> recorded) const {
  auto prepared = std::make_unique<Prepared<Recorded>>();
  prepared->recorded = std::move(recorded);
  auto plan = engine::plan(prepared->recorded->program);
  if (!plan.ok()) return plan.status();
  prepared->plan = *std::move(plan);
  const auto create = [&] {
    const engine::Program& program = prepared->recorded->program;
    switch (execution_) {
      case Execution::kProfiling:
        return engine::create_profiling_executor(program, prepared->plan, device_, groups_);
      case Execution::kSequential:
        return engine::create_sequential_executor(program, prepared->plan, device_, groups_);
      case Execution::kLanes:
        break;
    }
    return engine::create_lane_executor(program, prepared->plan, device_, groups_);
  };
  auto executor = create();
  if (!executor.ok()) return executor.status();
  prepared->executor = *std::move(executor);
  if (flight_ != nullptr) prepared->executor->set_listener(&flight_->others());
  return prepared;
}

template <typename Recorded>
void Replica::bind(Prepared<Recorded>& other, const parallel::FlatTensors& external,
                   const parallel::FlatTensors& owned) const {
  for (size_t i = 0; i < external.buckets().size(); ++i) {
    other.executor->bind(external.buckets()[i], train_->executor->address(owned.buckets()[i]));
  }
}

absl::Status Replica::build() {
  auto train = prepare(plan::record_train(shape_));
  if (!train.ok()) return train.status();
  train_ = *std::move(train);
  auto eval = prepare(plan::record_eval(shape_));
  if (!eval.ok()) return eval.status();
  eval_ = *std::move(eval);
  const plan::TrainProgram& owner = *train_->recorded;
  if (absl::Status status = build_buffers(); !status.ok()) return status;
  bind(*eval_, eval_->recorded->weights, owner.weights);
  const v1::PrecisionSpec& precision = shape_.spec.precision();
  std::vector<float> counted(step_state_size());
  counted[backend::kLossScale] =
      precision.compute() == v1::FP16 ? static_cast<float>(precision.loss_scale().initial()) : 1.0f;
  if (absl::Status status = write_step_state(counted); !status.ok()) return status;
  if (owner.amax_history.defined()) {
    eval_->executor->bind(eval_->recorded->amax_history, train_->executor->address(owner.amax_history));
  }
  if (!owner.rope_table.defined()) return absl::OkStatus();
  eval_->executor->bind(eval_->recorded->rope_table, train_->executor->address(owner.rope_table));
  const std::vector<float> table = model::rope_table(shape_.spec.model(), shape_.spec.batch().sequence_length());
  return upload<float>(device_, *train_->executor, owner.rope_table, table);
}

absl::Status Replica::build_buffers() {
  const plan::TrainProgram& program = *train_->recorded;
  auto buffers =
      engine::StepBuffers::create(device_, *train_->executor, program.from_host(),
                                  {program.loss, program.optimizer.grad_norm, program.valid, program.state.loss_scale(),
                                   program.state.step.slice(backend::kSkipped, {1}), program.stop});
  if (!buffers.ok()) return buffers.status();
  buffers_ = *std::move(buffers);
  return absl::OkStatus();
}

// What is in flight writes to the buffers, and goes through the gate.
Replica::~Replica() {
  if (in_flight() > 0) (void)train_->executor->wait();
}

constexpr auto kSavedKinds = static_cast<size_t>(Replica::Kind::kGrad);  // Those before it.

absl::Status Replica::prepare_snapshots(std::span<const parallel::Piece> share) {
  if (absl::Status idle = check_idle("prepare_snapshots"); !idle.ok()) return idle;
  const Tensor& step = train_->recorded->step_state;
  const Snapshot::Sources sources{.kinds = kSavedKinds,
                                  .locate =
                                      [this](size_t kind, const parallel::Piece& piece) {
                                        return train_->executor->address(tensor_of(static_cast<Kind>(kind), piece));
                                      },
                                  .extra = {train_->executor->address(step), step.bytes()}};
  auto snapshot = Snapshot::create(device_, share, sources);
  if (!snapshot.ok()) return snapshot.status();
  snapshot_ = *std::move(snapshot);
  train_->executor->set_gate(&snapshot_->copy().gate());
  return absl::OkStatus();
}

uint64_t Replica::snapshot_bytes(std::span<const parallel::Piece> share) const {
  return Snapshot::bytes_of(share, kSavedKinds, train_->recorded->step_state.bytes());
}

absl::Status Replica::take_snapshot() {
  if (snapshot_ == nullptr) return absl::FailedPreconditionError("take_snapshot: there is no memory for it");
  snapshot_->copy().take(train_->executor->origin());
  return absl::OkStatus();
}

absl::Status Replica::check_idle(const char* call) const {
  if (in_flight() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": ", in_flight(), " steps are in flight"));
}

// Of calls that overwrite what a snapshot copies.
absl::Status Replica::check_writable(const char* call) {
  absl::Status status = check_idle(call);
  if (status.ok() && snapshot_ != nullptr) status = snapshot_->copy().release();
  return status;
}

absl::Status Replica::init() {
  if (absl::Status idle = check_writable("init"); !idle.ok()) return idle;
  auto init = prepare(plan::record_init(shape_));
  if (!init.ok()) return init.status();
  bind(**init, (*init)->recorded->masters, train_->recorded->state.master);
  const absl::Status status = run_alone(*(*init)->executor);
  return status.ok() ? masters_changed() : status;
}

absl::Status Replica::masters_changed() {
  if (absl::Status idle = check_writable("masters_changed"); !idle.ok()) return idle;
  auto refresh = prepare(plan::record_refresh(shape_));
  if (!refresh.ok()) return refresh.status();
  bind(**refresh, (*refresh)->recorded->masters, train_->recorded->state.master);
  bind(**refresh, (*refresh)->recorded->weights, train_->recorded->weights);
  return run_alone(*(*refresh)->executor);
}

absl::Status Replica::run_alone(engine::Executor& executor) {
  const absl::Status status = executor.run();
  if (status.ok() && flight_ != nullptr) flight_->finished_all();
  return status;
}

absl::Status Replica::submit_step(uint64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                                  bool stop, std::span<const int32_t> starts) {
  if (in_flight() == engine::StepBuffers::kSlots) return check_idle("submit_step");
  const uint64_t count = submitted_ + 1;
  const bool closed = snapshot_ != nullptr && snapshot_->copy().gate().closed();
  if (closed && held_ > finished_) {  // The gate remembers one.
    return absl::FailedPreconditionError("submit_step: the step that waits for the snapshot before is in flight");
  }
  const auto put = [&](Input input, std::span<const int32_t> values) {
    const std::span<int32_t> to = buffers_->input<int32_t>(count, input);
    if (values.size() != to.size()) {
      return absl::InternalError(absl::StrCat("step ", step, ": ", values.size(), " tokens for ", to.size()));
    }
    std::copy(values.begin(), values.end(), to.begin());
    return absl::OkStatus();
  };
  absl::Status status = put(kInputs, inputs);
  status.Update(put(kTargets, targets));
  if (shape_.spec.data().reset_at_documents()) status.Update(put(kStarts, starts));
  if (!status.ok()) return status;
  const std::span<float> scalars = buffers_->input<float>(count, kScalars);
  std::fill(scalars.begin(), scalars.end(), 0.0f);
  scalars[backend::kLearningRate] =
      static_cast<float>(optim::learning_rate(shape_.spec.schedule(), shape_.spec.optimizer().learning_rate(), step));
  buffers_->input<float>(count, kStop)[0] = stop ? 1.0f : 0.0f;

  if (submitted_ == 0 && flight_ != nullptr) train_->executor->set_listener(&flight_->steps(step - 1));
  buffers_->send(count);
  step_numbers_[count % engine::StepBuffers::kSlots] = step;
  submitted_ = count;
  if (closed) held_ = count;
  engine::RunObserver* const observer = std::exchange(observer_, nullptr);
  status = observer == nullptr ? train_->executor->submit() : train_->executor->submit_observed(*observer);
  if (!status.ok()) return failed_step(status);
  if (flight_ != nullptr) flight_->submitted();
  buffers_->receive(count);
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Replica::finish_step() {
  if (in_flight() == 0) return absl::FailedPreconditionError("finish_step: no step is in flight");
  const uint64_t count = finished_ + 1;
  absl::Status status = buffers_->wait(count);
  if (!status.ok() || train_->executor->good_runs() < count) return failed_step(status);
  finished_ = count;
  if (flight_ != nullptr) flight_->finished_one();
  if (in_flight() == 0) status = buffers_->check();
  if (!status.ok()) return status;
  StepResult result;
  result.loss = buffers_->output(count, kLoss);
  result.grad_norm = buffers_->output(count, kGradNorm);
  result.valid_tokens = buffers_->output(count, kValid);
  result.loss_scale = buffers_->output(count, kLossScale);
  result.skipped = buffers_->output(count, kSkipped) > 0;
  result.stop = buffers_->output(count, kStopped) > 0;
  if (count == held_) {
    const absl::StatusOr<double> held = snapshot_->copy().gate().seconds_held();
    if (!held.ok()) return held.status();
    result.held = *held;
  }
  return result;
}

// The error with its step in front. Of an error that the device found by itself it may only be known that the step is
// one of those in flight.
absl::Status Replica::failed_step(const absl::Status& seen) {
  absl::Status cause = train_->executor->wait();
  if (cause.ok()) cause = seen.ok() ? absl::InternalError("did not run") : seen;
  const auto number = [&](uint64_t count) { return step_numbers_[count % engine::StepBuffers::kSlots]; };
  uint64_t failed = train_->executor->good_runs() + 1;
  const uint64_t run = train_->executor->failed_run();
  if (run > finished_ && run <= submitted_) failed = run;
  const uint64_t first = failed <= submitted_ ? failed : finished_ + 1;
  const uint64_t last = failed <= submitted_ ? failed : submitted_;
  std::string steps = absl::StrCat("step ", number(first));
  if (last != first) absl::StrAppend(&steps, " or ", number(last));
  return with_prefix(absl::StrCat(steps, ": "), cause);
}

absl::StatusOr<StepResult> Replica::train_step(uint64_t step, std::span<const int32_t> inputs,
                                               std::span<const int32_t> targets, bool stop,
                                               std::span<const int32_t> starts) {
  absl::Status status = check_idle("train_step");
  if (status.ok()) status = submit_step(step, inputs, targets, stop, starts);
  if (!status.ok()) return status;
  return finish_step();
}

template <typename Recorded>
absl::Status Replica::run_stoppable(const Prepared<Recorded>& prepared, bool stop) {
  engine::Executor& executor = *prepared.executor;
  const float wish = stop ? 1.0f : 0.0f;
  absl::Status status = upload<float>(device_, executor, prepared.recorded->stop, std::span(&wish, 1));
  if (status.ok()) status = run_alone(executor);
  if (!status.ok()) return status;
  const absl::StatusOr<float> asked = scalar(device_, executor, prepared.recorded->stop);
  if (!asked.ok()) return asked.status();
  asked_to_stop_ = *asked > 0;
  return absl::OkStatus();
}

absl::StatusOr<std::pair<double, double>> Replica::eval_batch(std::span<const int32_t> inputs,
                                                              std::span<const int32_t> targets,
                                                              std::span<const int32_t> starts, bool stop) {
  const plan::EvalProgram& program = *eval_->recorded;
  engine::Executor& executor = *eval_->executor;
  absl::Status status = check_idle("eval_batch");
  status.Update(upload<int32_t>(device_, executor, program.inputs, inputs));
  status.Update(upload<int32_t>(device_, executor, program.targets, targets));
  if (program.starts.defined()) status.Update(upload<int32_t>(device_, executor, program.starts, starts));
  if (status.ok()) status = run_stoppable(*eval_, stop);
  if (!status.ok()) return status;
  const absl::StatusOr<float> loss = scalar(device_, executor, program.loss_sum);
  if (!loss.ok()) return loss.status();
  const absl::StatusOr<float> valid = scalar(device_, executor, program.valid);
  if (!valid.ok()) return valid.status();
  return std::pair<double, double>(*loss, *valid);
}

absl::StatusOr<Prepared<plan::LogitsProgram>*> Replica::logits_program() {
  if (logits_ == nullptr) {
    auto logits = prepare(plan::record_logits(shape_));
    if (!logits.ok()) return logits.status();
    logits_ = *std::move(logits);
    bind(*logits_, logits_->recorded->weights, train_->recorded->weights);
    if (logits_->recorded->rope_table.defined()) {
      logits_->executor->bind(logits_->recorded->rope_table, train_->executor->address(train_->recorded->rope_table));
    }
    if (logits_->recorded->amax_history.defined()) {
      logits_->executor->bind(logits_->recorded->amax_history,
                              train_->executor->address(train_->recorded->amax_history));
    }
  }
  return logits_.get();
}

absl::StatusOr<std::vector<float>> Replica::next_logits(std::span<const int32_t> ids, int32_t row,
                                                        std::span<const int32_t> starts, bool stop) {
  const auto prepared = logits_program();
  if (!prepared.ok()) return prepared.status();
  const plan::LogitsProgram& program = *(*prepared)->recorded;
  engine::Executor& executor = *(*prepared)->executor;
  std::vector<int32_t> padded(ids.begin(), ids.end());
  padded.resize(static_cast<size_t>(program.inputs.elements()), 0);
  absl::Status status = check_idle("next_logits");
  status.Update(upload<int32_t>(device_, executor, program.inputs, padded));
  if (program.starts.defined()) {
    std::vector<int32_t> of_all(starts.begin(), starts.end());
    of_all.resize(padded.size(), of_all.empty() ? 0 : of_all.back());
    status.Update(upload<int32_t>(device_, executor, program.starts, of_all));
  }
  status.Update(upload<int32_t>(device_, executor, program.row, std::span(&row, 1)));
  if (status.ok()) status = run_stoppable(**prepared, stop);
  if (!status.ok()) return status;
  // Each tensor rank's share of the vocabulary, one row a rank.
  std::vector<float> all;
  for (int rank = 0; rank < shape_.mesh.tp_size; ++rank) {
    const parallel::Range share = model::split(shape_.spec.model().vocab(), shape_.mesh.tp_size, rank);
    const std::byte* from = executor.address(program.logits.rows(rank, 1));
    const auto values = read_as_floats(device_, shape_.act, from, static_cast<size_t>(share.count));
    if (!values.ok()) return values.status();
    all.insert(all.end(), values->begin(), values->end());
  }
  return all;
}

absl::Status Replica::read_step_state(std::span<float> out) const {
  const Tensor& tensor = train_->recorded->step_state;
  if (out.size_bytes() != tensor.bytes()) return absl::InternalError("read_step_state: wrong size");
  if (absl::Status idle = check_idle("read_step_state"); !idle.ok()) return idle;
  return device_.copy_to_host(train_->executor->address(tensor), out.data(), out.size_bytes());
}

absl::Status Replica::write_step_state(std::span<const float> values) {
  if (absl::Status idle = check_writable("write_step_state"); !idle.ok()) return idle;
  return upload<float>(device_, *train_->executor, train_->recorded->step_state, values);
}

const parallel::FlatTensors& Replica::tensors(Kind kind) const {
  const plan::TrainProgram& program = *train_->recorded;
  switch (kind) {
    case Kind::kMaster:
      return program.state.master;
    case Kind::kExpAvg:
      return program.state.exp_avg;
    case Kind::kExpAvgSq:
      return program.state.exp_avg_sq;
    case Kind::kGrad:
      break;
  }
  return program.grads;
}

Tensor Replica::tensor_of(Kind kind, const parallel::Piece& piece) const {
  return tensors(kind).range(static_cast<size_t>(piece.bucket), {piece.first, piece.slice.count});
}

absl::Status Replica::read(Kind kind, const parallel::Piece& piece, std::span<float> out) const {
  const Tensor tensor = tensor_of(kind, piece);
  if (out.size_bytes() != tensor.bytes()) return absl::InternalError("read: wrong size");
  if (absl::Status idle = check_idle("read"); !idle.ok()) return idle;
  return device_.copy_to_host(train_->executor->address(tensor), out.data(), out.size_bytes());
}

absl::Status Replica::write(Kind kind, const parallel::Piece& piece, std::span<const float> values) {
  if (absl::Status idle = check_writable("write"); !idle.ok()) return idle;
  return upload<float>(device_, *train_->executor, tensor_of(kind, piece), values);
}

}  // namespace telar::train
