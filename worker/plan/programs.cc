#include "worker/plan/programs.h"

#include <string>

#include "worker/model/parameters.h"
#include "worker/model/random.h"
#include "worker/model/transformer.h"

namespace telar::plan {
namespace {

using backend::Communicator;
using backend::Kernels;
using backend::ReduceOp;
using engine::DType;
using engine::MemoryClass;
using engine::Phase;
using engine::Program;
using engine::Tensor;
using parallel::FlatTensors;
using Scope = engine::Program::Scope;

FlatTensors own(Program& program, const RunShape& shape, const std::string& name, DType dtype,
                MemoryClass memory_class) {
  return FlatTensors(program, shape.layout, name, dtype, memory_class, FlatTensors::Owner::kProgram);
}
FlatTensors borrow(Program& program, const RunShape& shape, const std::string& name, DType dtype) {
  return FlatTensors(program, shape.layout, name, dtype, MemoryClass::kWeights, FlatTensors::Owner::kExternal);
}

bool uses_rope(const RunShape& shape) { return shape.spec.model().architecture() == v1::LLAMA; }
engine::Shape rope_shape(const RunShape& shape) {
  return {shape.spec.batch().sequence_length(), shape.spec.model().head_dim()};
}

// Combines `x` over the replicas; nothing to do for one.
void reduce_over_replicas(Program& program, const RunShape& shape, const std::string& name, Tensor x,
                          ReduceOp op = ReduceOp::kSum) {
  if (shape.mesh.dp_size == 1) return;
  program.record(name, kDataParallelGroup, &Communicator::all_reduce, op, x.inout());
}

model::Recorder recorder(Program& program, const RunShape& shape, const FlatTensors& weights, const FlatTensors& grads,
                         Tensor rope_table, int64_t batch) {
  return {program,
          shape.spec.model(),
          shape.layout,
          weights,
          grads,
          rope_table,
          shape.act,
          batch,
          shape.spec.batch().sequence_length(),
          shape.logits_bytes};
}

// Zeroes what no product of the first micro-batch writes: of each bucket the range of small vectors, and whole tables.
// Padding between groups is never written and so stays as its memory began: zero.
void zero_gradients(TrainProgram& train, const RunShape& shape) {
  for (size_t i = 0; i < shape.layout.buckets().size(); ++i) {
    const parallel::Bucket& bucket = shape.layout.buckets()[i];
    if (bucket.decayed == bucket.elements) continue;
    const Tensor vectors = train.grads.buckets()[i].slice(bucket.decayed, {bucket.elements - bucket.decayed});
    train.program.record("grads.zero." + std::to_string(i), &Kernels::fill, 0.0f, vectors.out());
  }
  for (const parallel::ParameterGroup& group : shape.layout.groups()) {
    if (!group.decays || model::written_by_product(shape.spec.model(), group)) continue;
    const Tensor table = train.grads.group(shape.layout, group.name);
    train.program.record("grads.zero." + group.name, &Kernels::fill, 0.0f, table.out());
  }
}

// Zeroes the gradients, then runs every micro-batch forward and backward; each bucket is summed over the replicas
// right behind the op that completes it.
void record_micro_batches(TrainProgram& train, const RunShape& shape) {
  Program& program = train.program;
  zero_gradients(train, shape);
  const int64_t tokens = shape.micro_tokens();
  for (int64_t m = 0; m < shape.micro_batches; ++m) {
    const std::string prefix = "mb" + std::to_string(m) + "/";
    model::Recorder layer_recorder =
        recorder(program, shape, train.weights, train.grads, train.rope_table, shape.spec.batch().micro());
    layer_recorder.first_micro_batch = m == 0;
    layer_recorder.recompute = shape.spec.memory().recompute();
    model::Transformer transformer(shape.spec.model());
    Tensor hidden;
    {
      const Scope scope(program, prefix, Phase::kForward);
      hidden = transformer.forward(layer_recorder, train.inputs.slice(m * tokens, {tokens}));
    }
    const Scope scope(program, prefix, Phase::kBackward);
    const Tensor dhidden = model::Head::loss_and_gradient(
        layer_recorder, hidden,
        {train.targets.slice(m * tokens, {tokens}), train.valid, train.loss, train.state.loss_scale()});
    transformer.backward(layer_recorder, dhidden, [&](int unit) {
      if (m + 1 < shape.micro_batches) return;
      for (size_t i = 0; i < shape.layout.buckets().size(); ++i) {
        if (shape.layout.buckets()[i].last_unit != unit) continue;
        const Scope reduce(program, "", Phase::kGradComm);
        reduce_over_replicas(program, shape, "grads.reduce." + std::to_string(i), train.grads.buckets()[i]);
      }
    });
  }
}

DType act_type(v1::Precision precision) {
  if (precision == v1::BF16) return DType::kBF16;
  return precision == v1::FP16 ? DType::kF16 : DType::kF32;
}

}  // namespace

RunShape run_shape(const v1::JobSpec& resolved, const parallel::Mesh& mesh) {
  const int64_t bucket_elements = (int64_t{resolved.parallel().bucket_mib()} << 20) / 4;
  const int64_t local = resolved.batch().global() / mesh.dp_size;
  return {resolved, mesh, parallel::FlatLayout(model::parameter_groups(resolved.model()), bucket_elements),
          act_type(resolved.precision().compute()), local / resolved.batch().micro()};
}

std::unique_ptr<TrainProgram> record_train(const RunShape& shape) {
  auto train = std::make_unique<TrainProgram>();
  Program& program = train->program;
  train->weights = own(program, shape, "weights", shape.act, MemoryClass::kWeights);
  train->grads = own(program, shape, "grads", DType::kF32, MemoryClass::kGrads);
  train->state.master = shape.weights_are_masters()
                            ? train->weights
                            : own(program, shape, "master", DType::kF32, MemoryClass::kOptimizer);
  train->state.exp_avg = own(program, shape, "exp_avg", DType::kF32, MemoryClass::kOptimizer);
  train->state.exp_avg_sq = own(program, shape, "exp_avg_sq", DType::kF32, MemoryClass::kOptimizer);
  train->state.step = program.persistent("step_state", DType::kF32, {backend::kStepStates}, MemoryClass::kOptimizer);
  if (uses_rope(shape)) {
    train->rope_table = program.persistent("rope_table", DType::kF32, rope_shape(shape), MemoryClass::kWeights);
  }
  const engine::Shape batch{shape.micro_batches, shape.micro_tokens()};
  train->inputs = program.persistent("inputs", DType::kI32, batch, MemoryClass::kIo);
  train->targets = program.persistent("targets", DType::kI32, batch, MemoryClass::kIo);
  train->loss = program.persistent("loss", DType::kF32, {1}, MemoryClass::kIo);
  train->valid = program.persistent("valid", DType::kF32, {1}, MemoryClass::kIo);
  train->stop = program.persistent("stop", DType::kF32, {1}, MemoryClass::kIo);

  // The mean is over the global batch, so its size must be known before the first gradient.
  program.record("valid.zero", &Kernels::fill, 0.0f, train->valid.out());
  program.record("valid.count", &Kernels::count_valid, train->targets.in(), train->valid.inout());
  reduce_over_replicas(program, shape, "valid.reduce", train->valid);
  reduce_over_replicas(program, shape, "stop.reduce", train->stop, ReduceOp::kMax);
  program.record("loss.zero", &Kernels::fill, 0.0f, train->loss.out());
  record_micro_batches(*train, shape);
  reduce_over_replicas(program, shape, "loss.reduce", train->loss);
  train->optimizer = optim::record_adamw(program, shape.spec.optimizer(), shape.spec.precision(), shape.layout,
                                         train->grads, train->state, train->weights, shape.weights_are_masters());
  return train;
}

std::unique_ptr<EvalProgram> record_eval(const RunShape& shape) {
  auto eval = std::make_unique<EvalProgram>();
  Program& program = eval->program;
  eval->weights = borrow(program, shape, "weights", shape.act);
  if (uses_rope(shape)) eval->rope_table = program.external("rope_table", DType::kF32, rope_shape(shape));
  eval->inputs = program.persistent("inputs", DType::kI32, {shape.micro_tokens()}, MemoryClass::kIo);
  eval->targets = program.persistent("targets", DType::kI32, {shape.micro_tokens()}, MemoryClass::kIo);
  eval->loss_sum = program.persistent("loss_sum", DType::kF32, {1}, MemoryClass::kIo);
  eval->valid = program.persistent("valid", DType::kF32, {1}, MemoryClass::kIo);
  const Tensor one = program.transient("one", DType::kF32, {1}, MemoryClass::kWorkspace);

  program.record("valid.zero", &Kernels::fill, 0.0f, eval->valid.out());
  program.record("valid.count", &Kernels::count_valid, eval->targets.in(), eval->valid.inout());
  reduce_over_replicas(program, shape, "valid.reduce", eval->valid);
  program.record("loss.zero", &Kernels::fill, 0.0f, eval->loss_sum.out());
  program.record("one", &Kernels::fill, 1.0f, one.out());  // A sum, not a mean: divided on the host over all batches.
  const Scope scope(program, "", Phase::kForward);
  const model::Recorder layer_recorder =
      recorder(program, shape, eval->weights, FlatTensors(), eval->rope_table, shape.spec.batch().micro());
  const Tensor hidden = model::Transformer(shape.spec.model()).forward(layer_recorder, eval->inputs);
  model::Head::loss_only(layer_recorder, hidden, {eval->targets, one, eval->loss_sum});
  reduce_over_replicas(program, shape, "loss.reduce", eval->loss_sum);
  return eval;
}

std::unique_ptr<LogitsProgram> record_logits(const RunShape& shape) {
  auto logits = std::make_unique<LogitsProgram>();
  Program& program = logits->program;
  logits->weights = borrow(program, shape, "weights", shape.act);
  if (uses_rope(shape)) logits->rope_table = program.external("rope_table", DType::kF32, rope_shape(shape));
  logits->inputs = program.persistent("inputs", DType::kI32, {shape.spec.batch().sequence_length()}, MemoryClass::kIo);
  logits->row = program.persistent("row", DType::kI32, {1}, MemoryClass::kIo);
  const Scope scope(program, "", Phase::kForward);
  const model::Recorder layer_recorder =
      recorder(program, shape, logits->weights, FlatTensors(), logits->rope_table, 1);
  const Tensor hidden = model::Transformer(shape.spec.model()).forward(layer_recorder, logits->inputs);
  logits->logits = model::Head::logits_of_row(layer_recorder, hidden, logits->row);
  return logits;
}

std::unique_ptr<InitProgram> record_init(const RunShape& shape) {
  auto init = std::make_unique<InitProgram>();
  init->masters = borrow(init->program, shape, "master", DType::kF32);
  for (size_t g = 0; g < shape.layout.groups().size(); ++g) {
    const parallel::ParameterGroup& group = shape.layout.groups()[g];
    for (size_t p = 0; p < group.parts.size(); ++p) {
      const parallel::Parameter& parameter = group.parts[p];
      const Tensor tensor = init->masters.part(shape.layout, g, p);
      if (parameter.init == parallel::Parameter::Init::kNormal) {
        const backend::RandomKey key{shape.spec.seed(), static_cast<uint32_t>(model::RandomPurpose::kInitialWeights),
                                     model::tensor_stream(parameter.name), 0};
        init->program.record(parameter.name, &Kernels::random_normal, key, parameter.stddev, tensor.out());
      } else {
        const float value = parameter.init == parallel::Parameter::Init::kOnes ? 1.0f : 0.0f;
        init->program.record(parameter.name, &Kernels::fill, value, tensor.out());
      }
    }
  }
  return init;
}

std::unique_ptr<RoundProgram> record_round(const RunShape& shape) {
  auto round = std::make_unique<RoundProgram>();
  round->masters = borrow(round->program, shape, "master", DType::kF32);
  round->weights = borrow(round->program, shape, "weights", shape.act);
  for (size_t i = 0; i < shape.layout.buckets().size(); ++i) {
    round->program.record("round." + std::to_string(i), &Kernels::cast, round->masters.buckets()[i].in(),
                          round->weights.buckets()[i].out());
  }
  return round;
}

}  // namespace telar::plan
