// Programs without a backward: evaluation and the next token's logits.
#include "worker/model/parameters.h"
#include "worker/plan/programs.h"
#include "worker/plan/recording.h"

namespace telar::plan {

using backend::Communicator;
using backend::Kernels;
using backend::ReduceOp;
using engine::DType;
using engine::MemoryClass;
using engine::Phase;
using engine::Program;
using engine::Tensor;
using parallel::Role;

std::unique_ptr<EvalProgram> record_eval(const RunShape& shape) {
  auto eval = std::make_unique<EvalProgram>();
  Program& program = eval->program;
  eval->weights = borrow(program, shape, "weights", shape.act, weight_extent(shape));
  if (uses_rope(shape)) eval->rope_table = program.external("rope_table", DType::kF32, rope_shape(shape));
  eval->inputs = program.persistent("inputs", DType::kI32, {shape.micro_tokens()}, MemoryClass::kIo);
  eval->targets = program.persistent("targets", DType::kI32, {shape.micro_tokens()}, MemoryClass::kIo);
  eval->starts = starts(program, shape, {shape.micro_tokens()});
  eval->loss_sum = program.persistent("loss_sum", DType::kF32, {1}, MemoryClass::kIo);
  eval->valid = program.persistent("valid", DType::kF32, {1}, MemoryClass::kIo);
  eval->stop = program.persistent("stop", DType::kF32, {1}, MemoryClass::kIo);
  const Tensor one = program.transient("one", DType::kF32, {1}, MemoryClass::kWorkspace);

  count_valid(program, shape, eval->targets, eval->valid);
  reduce_over_world(program, shape, "stop.reduce", eval->stop, ReduceOp::kMax);
  program.record("loss.zero", &Kernels::fill, 0.0f, eval->loss_sum.out());
  eval->amax_history = borrow_history(program, shape);
  const parallel::Fp8Scales scales = fp8_scales(program, shape, eval->amax_history, /*observes=*/false);
  parallel::Weights weights(program, shape.layout, shape.groups, shape.sharding, eval->weights,
                            fp8_weights(shape, scales));
  const model::Recorder layers =
      recorder(program, shape, weights, scales, eval->rope_table, eval->starts, shape.spec.batch().micro());
  const Tensor hidden = record_forward(layers, shape, eval->inputs);
  if (hidden.defined()) {
    const Program::Scope scope(program, "", Phase::kForward);
    program.record("one", &Kernels::fill, 1.0f, one.out());  // A sum, not a mean: divided on the host over all batches.
    model::Head::loss_only(layers, hidden, {eval->targets, one, eval->loss_sum});
  }
  sum_over_world(program, shape, "loss.reduce", eval->loss_sum, shape.has_head() && shape.mesh.tp == 0);
  overlap_tensor(program, shape);
  return eval;
}

std::unique_ptr<LogitsProgram> record_logits(const RunShape& shape) {
  auto logits = std::make_unique<LogitsProgram>();
  Program& program = logits->program;
  logits->weights = borrow(program, shape, "weights", shape.act, weight_extent(shape));
  if (uses_rope(shape)) logits->rope_table = program.external("rope_table", DType::kF32, rope_shape(shape));
  logits->inputs = program.persistent("inputs", DType::kI32, {shape.spec.batch().sequence_length()}, MemoryClass::kIo);
  logits->starts = starts(program, shape, {shape.spec.batch().sequence_length()});
  logits->row = program.persistent("row", DType::kI32, {1}, MemoryClass::kIo);
  const int64_t ranks = shape.mesh.tp_size;
  logits->logits =
      program.persistent("logits", shape.act,
                         {ranks, model::padded_vocab_share(shape.spec.model(), shape.mesh.tp_size)}, MemoryClass::kIo);
  logits->stop = program.persistent("stop", DType::kF32, {1}, MemoryClass::kIo);

  reduce_over_world(program, shape, "stop.reduce", logits->stop, ReduceOp::kMax);
  logits->amax_history = borrow_history(program, shape);
  const parallel::Fp8Scales scales = fp8_scales(program, shape, logits->amax_history, /*observes=*/false);
  parallel::Weights weights(program, shape.layout, shape.groups, shape.sharding, logits->weights,
                            fp8_weights(shape, scales));
  const model::Recorder layers = recorder(program, shape, weights, scales, logits->rope_table, logits->starts, 1);
  const Tensor hidden = record_forward(layers, shape, logits->inputs);
  const Program::Scope scope(program, "", Phase::kForward);
  if (hidden.defined()) {
    const Tensor mine = logits->logits.rows(shape.mesh.tp, 1);
    model::Head::logits_of_row(layers, hidden, logits->row, mine);
    if (ranks > 1) {
      program.record("logits.gather", shape.groups.id(Role::kTensor), &Communicator::all_gather, mine.in(),
                     logits->logits.out());
    }
  }
  if (shape.mesh.pp_size > 1) {
    program.record("logits.broadcast", shape.groups.id(Role::kPipeline), &Communicator::broadcast,
                   shape.rank_of_stage.back(), logits->logits.inout());
  }
  overlap_tensor(program, shape);
  return logits;
}

}  // namespace telar::plan
