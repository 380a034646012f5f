#include "worker/optim/adamw.h"

#include <algorithm>
#include <string>

namespace telar::optim {

using backend::Kernels;
using engine::DType;
using engine::MemoryClass;
using engine::Tensor;
using parallel::Range;
using parallel::Role;

backend::StepParams step_params(const v1::OptimizerSpec& optimizer, const v1::PrecisionSpec& precision) {
  backend::StepParams params;
  params.beta1 = optimizer.beta1();
  params.beta2 = optimizer.beta2();
  if (precision.compute() != v1::FP16) return params;
  const v1::LossScaleSpec& scale = precision.loss_scale();
  params.growth_factor = static_cast<float>(scale.growth_factor());
  params.backoff_factor = static_cast<float>(scale.backoff_factor());
  params.growth_interval = static_cast<int64_t>(scale.growth_interval());
  params.min_loss_scale = static_cast<float>(scale.min());
  params.max_loss_scale = static_cast<float>(scale.max());
  return params;
}

namespace {

// Squares of what this rank counts, added up over all ranks.
Tensor record_sum_squares(engine::Program& program, const AdamWInputs& inputs) {
  const Tensor sum = program.transient("sum_squares", DType::kF32, {1}, MemoryClass::kWorkspace);
  program.record("sum_squares.zero", &Kernels::fill, 0.0f, sum.out());
  // Shard groups that replicate each other have the same gradients: the first one counts.
  const bool counts = inputs.groups.rank(Role::kReplicate) == 0;
  for (size_t i = 0; counts && i < inputs.layout.buckets().size(); ++i) {
    for (const Range& range : inputs.layout.counted(i)) {
      program.record("sum_squares." + std::to_string(i), &Kernels::sum_squares, inputs.grads.range(i, range).in(),
                     sum.inout());
    }
  }
  if (inputs.groups.size(Role::kWorld) > 1) {
    program.record("sum_squares.reduce", inputs.groups.id(Role::kWorld), &backend::Communicator::all_reduce,
                   backend::ReduceOp::kSum, sum.inout());
  }
  return sum;
}

// Elements of `range` on one side of the bucket's boundary between what decays and what does not.
Range side(const Range& range, int64_t boundary, bool decays) {
  const int64_t first = decays ? range.first : std::max(range.first, boundary);
  const int64_t end = decays ? std::min(range.end(), boundary) : range.end();
  return {first, std::max<int64_t>(0, end - first)};
}

}  // namespace

AdamWTensors record_adamw(engine::Program& program, const v1::OptimizerSpec& spec, const v1::PrecisionSpec& precision,
                          const AdamWInputs& inputs, const AdamWState& state) {
  const engine::Program::Scope scope(program, "optimizer/", engine::Phase::kOptimizer);
  AdamWTensors tensors;
  tensors.step_scalars = program.persistent("step_scalars", DType::kF32, {backend::kStepScalars}, MemoryClass::kIo);
  tensors.grad_norm = program.persistent("grad_norm", DType::kF32, {1}, MemoryClass::kIo);
  const Tensor sum = record_sum_squares(program, inputs);
  const Tensor scale = program.transient("clip_scale", DType::kF32, {1}, MemoryClass::kWorkspace);
  program.record("clip_scale", &Kernels::clip_scale, sum.in(), state.loss_scale().in(),
                 static_cast<float>(spec.clip_norm()), tensors.grad_norm.out(), scale.out());
  // From here on what a step leaves behind is overwritten.
  program.record_gate("gate");
  program.record("advance", &Kernels::advance_step, step_params(spec, precision), scale.in(), state.step.inout(),
                 tensors.step_scalars.inout());

  const parallel::FlatLayout& layout = inputs.layout;
  for (size_t i = layout.buckets().size(); i-- > 0;) {
    const Range held = inputs.sharded ? layout.shard(i) : layout.whole(i);
    for (const bool decays : {true, false}) {
      const Range range = side(held, layout.buckets()[i].decayed, decays);
      if (range.count == 0) continue;
      const auto of = [&](const parallel::FlatTensors& tensor) { return tensor.range(i, range); };
      const backend::AdamWParams params{static_cast<float>(spec.beta1()), static_cast<float>(spec.beta2()),
                                        static_cast<float>(spec.epsilon()),
                                        decays ? static_cast<float>(spec.weight_decay()) : 0.0f};
      program.record((decays ? "adamw.decay." : "adamw.") + std::to_string(i), &Kernels::adamw, params,
                     of(inputs.grads).in(), scale.in(), tensors.step_scalars.in(), of(state.master).inout(),
                     of(state.exp_avg).inout(), of(state.exp_avg_sq).inout(),
                     inputs.weights.defined() ? of(inputs.weights).out() : Tensor().out());
    }
    inputs.updated(i);
  }
  return tensors;
}

}  // namespace telar::optim
