#include "worker/train/replica.h"

#include "absl/strings/str_cat.h"
#include "worker/model/transformer.h"
#include "worker/optim/schedule.h"

namespace telar::train {
namespace {

using engine::Tensor;

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

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::create(plan::RunShape shape, backend::Device& device,
                                                         std::vector<backend::Communicator*> groups,
                                                         Execution execution) {
  std::unique_ptr<Replica> replica(new Replica(std::move(shape), device, std::move(groups), execution));
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
  auto executor =
      execution_ == Execution::kLanes
          ? engine::create_lane_executor(prepared->recorded->program, prepared->plan, device_, groups_)
          : engine::create_sequential_executor(prepared->recorded->program, prepared->plan, device_, groups_);
  if (!executor.ok()) return executor.status();
  prepared->executor = *std::move(executor);
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
  bind(*eval_, eval_->recorded->weights, owner.weights);
  const v1::PrecisionSpec& precision = shape_.spec.precision();
  std::vector<float> counted(backend::kStepStates);
  counted[backend::kLossScale] =
      precision.compute() == v1::FP16 ? static_cast<float>(precision.loss_scale().initial()) : 1.0f;
  if (absl::Status status = write_step_state(counted); !status.ok()) return status;
  if (!owner.rope_table.defined()) return absl::OkStatus();
  eval_->executor->bind(eval_->recorded->rope_table, train_->executor->address(owner.rope_table));
  const std::vector<float> table = model::rope_table(shape_.spec.model(), shape_.spec.batch().sequence_length());
  return upload<float>(device_, *train_->executor, owner.rope_table, table);
}

absl::Status Replica::init() {
  auto init = prepare(plan::record_init(shape_));
  if (!init.ok()) return init.status();
  bind(**init, (*init)->recorded->masters, train_->recorded->state.master);
  const absl::Status status = (*init)->executor->run();
  return status.ok() ? masters_changed() : status;
}

absl::Status Replica::masters_changed() {
  if (shape_.weights_are_masters()) return absl::OkStatus();
  auto round = prepare(plan::record_round(shape_));
  if (!round.ok()) return round.status();
  bind(**round, (*round)->recorded->masters, train_->recorded->state.master);
  bind(**round, (*round)->recorded->weights, train_->recorded->weights);
  return (*round)->executor->run();
}

absl::StatusOr<StepResult> Replica::train_step(uint64_t step, std::span<const int32_t> inputs,
                                               std::span<const int32_t> targets, bool stop) {
  const plan::TrainProgram& program = *train_->recorded;
  engine::Executor& executor = *train_->executor;
  std::vector<float> scalars(backend::kStepScalars);
  scalars[backend::kLearningRate] =
      static_cast<float>(optim::learning_rate(shape_.spec.schedule(), shape_.spec.optimizer().learning_rate(), step));
  const float stop_flag = stop ? 1.0f : 0.0f;
  absl::Status status = upload<float>(device_, executor, program.optimizer.step_scalars, scalars);
  status.Update(upload<int32_t>(device_, executor, program.inputs, inputs));
  status.Update(upload<int32_t>(device_, executor, program.targets, targets));
  status.Update(upload<float>(device_, executor, program.stop, std::span(&stop_flag, 1)));
  if (!status.ok()) return status;
  status = executor.run();
  if (!status.ok()) return status;

  StepResult result;
  const auto take = [&](const Tensor& tensor, double& out) {
    const absl::StatusOr<float> value = scalar(device_, executor, tensor);
    if (value.ok()) out = *value;
    status.Update(value.status());
  };
  double stop_sum = 0, skipped = 0;
  take(program.loss, result.loss);
  take(program.optimizer.grad_norm, result.grad_norm);
  take(program.valid, result.valid_tokens);
  take(program.stop, stop_sum);
  take(program.state.loss_scale(), result.loss_scale);
  take(program.state.step.slice(backend::kSkipped, {1}), skipped);
  if (!status.ok()) return status;
  result.skipped = skipped > 0;
  result.stop = stop_sum > 0;
  return result;
}

absl::StatusOr<std::pair<double, double>> Replica::eval_batch(std::span<const int32_t> inputs,
                                                              std::span<const int32_t> targets) {
  const plan::EvalProgram& program = *eval_->recorded;
  engine::Executor& executor = *eval_->executor;
  absl::Status status = upload<int32_t>(device_, executor, program.inputs, inputs);
  status.Update(upload<int32_t>(device_, executor, program.targets, targets));
  if (status.ok()) status = executor.run();
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
  }
  return logits_.get();
}

absl::StatusOr<std::vector<float>> Replica::next_logits(std::span<const int32_t> ids, int32_t row) {
  const auto prepared = logits_program();
  if (!prepared.ok()) return prepared.status();
  const plan::LogitsProgram& program = *(*prepared)->recorded;
  engine::Executor& executor = *(*prepared)->executor;
  std::vector<int32_t> padded(ids.begin(), ids.end());
  padded.resize(static_cast<size_t>(program.inputs.elements()), 0);
  absl::Status status = upload<int32_t>(device_, executor, program.inputs, padded);
  status.Update(upload<int32_t>(device_, executor, program.row, std::span(&row, 1)));
  if (status.ok()) status = executor.run();
  if (!status.ok()) return status;
  const std::byte* from = executor.address(program.logits);
  const size_t vocab = shape_.spec.model().vocab();
  if (shape_.act == engine::DType::kBF16) return read_floats<backend::Bf16>(device_, from, vocab);
  if (shape_.act == engine::DType::kF16) return read_floats<backend::F16>(device_, from, vocab);
  return read_floats<float>(device_, from, vocab);
}

absl::Status Replica::read_step_state(std::span<float> out) const {
  const Tensor& tensor = train_->recorded->state.step;
  if (out.size_bytes() != tensor.bytes()) return absl::InternalError("read_step_state: wrong size");
  return device_.copy_to_host(train_->executor->address(tensor), out.data(), out.size_bytes());
}

absl::Status Replica::write_step_state(std::span<const float> values) {
  return upload<float>(device_, *train_->executor, train_->recorded->state.step, values);
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

absl::Status Replica::read(Kind kind, size_t group, size_t part, std::span<float> out) const {
  const Tensor tensor = tensors(kind).part(shape_.layout, group, part);
  if (out.size_bytes() != tensor.bytes()) return absl::InternalError("read: wrong size");
  return device_.copy_to_host(train_->executor->address(tensor), out.data(), out.size_bytes());
}

absl::Status Replica::write(Kind kind, size_t group, size_t part, std::span<const float> values) {
  return upload<float>(device_, *train_->executor, tensors(kind).part(shape_.layout, group, part), values);
}

}  // namespace telar::train
