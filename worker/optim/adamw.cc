#include "worker/optim/adamw.h"

namespace telar::optim {

using backend::Kernels;
using engine::DType;
using engine::MemoryClass;
using engine::Tensor;

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

AdamWTensors record_adamw(engine::Program& program, const v1::OptimizerSpec& spec, const v1::PrecisionSpec& precision,
                          const parallel::FlatLayout& layout, const parallel::FlatTensors& grads,
                          const AdamWState& state, const parallel::FlatTensors& weights, bool weights_are_masters) {
  const engine::Program::Scope scope(program, "optimizer/", engine::Phase::kOptimizer);
  AdamWTensors tensors;
  tensors.step_scalars = program.persistent("step_scalars", DType::kF32, {backend::kStepScalars}, MemoryClass::kIo);
  tensors.grad_norm = program.persistent("grad_norm", DType::kF32, {1}, MemoryClass::kIo);
  const Tensor sum = program.transient("sum_squares", DType::kF32, {1}, MemoryClass::kWorkspace);
  const Tensor scale = program.transient("clip_scale", DType::kF32, {1}, MemoryClass::kWorkspace);

  program.record("sum_squares.zero", &Kernels::fill, 0.0f, sum.out());
  for (size_t i = 0; i < layout.buckets().size(); ++i) {
    program.record("sum_squares." + std::to_string(i), &Kernels::sum_squares, grads.buckets()[i].in(), sum.inout());
  }
  program.record("clip_scale", &Kernels::clip_scale, sum.in(), state.loss_scale().in(),
                 static_cast<float>(spec.clip_norm()), tensors.grad_norm.out(), scale.out());
  program.record("advance", &Kernels::advance_step, step_params(spec, precision), scale.in(), state.step.inout(),
                 tensors.step_scalars.inout());

  for (size_t i = 0; i < layout.buckets().size(); ++i) {
    const parallel::Bucket& bucket = layout.buckets()[i];
    for (const bool decays : {true, false}) {
      const int64_t first = decays ? 0 : bucket.decayed;
      const int64_t count = decays ? bucket.decayed : bucket.elements - bucket.decayed;
      if (count == 0) continue;
      const auto range = [&](const parallel::FlatTensors& tensor) { return tensor.buckets()[i].slice(first, {count}); };
      const backend::AdamWParams params{static_cast<float>(spec.beta1()), static_cast<float>(spec.beta2()),
                                        static_cast<float>(spec.epsilon()),
                                        decays ? static_cast<float>(spec.weight_decay()) : 0.0f};
      program.record((decays ? "adamw.decay." : "adamw.") + std::to_string(i), &Kernels::adamw, params,
                     range(grads).in(), scale.in(), tensors.step_scalars.in(), range(state.master).inout(),
                     range(state.exp_avg).inout(), range(state.exp_avg_sq).inout(),
                     weights_are_masters ? Tensor().out() : range(weights).out());
    }
  }
  return tensors;
}

}  // namespace telar::optim
