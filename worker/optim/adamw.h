// AdamW over the flat buckets, behind a clip by the global norm.
#pragma once

#include "telar/v1/spec.pb.h"
#include "worker/engine/program.h"
#include "worker/parallel/flat_layout.h"

namespace telar::optim {

// The optimizer's state. Of the flat tensors, an f32 one a bucket each. In fp32 the weights are their own masters.
struct AdamWState {
  parallel::FlatTensors master;
  parallel::FlatTensors exp_avg;
  parallel::FlatTensors exp_avg_sq;
  engine::Tensor step;  // f32 [backend::kStepStates]; the loss scale in it is never 0.

  engine::Tensor loss_scale() const { return step.slice(backend::kLossScale, {1}); }
};

// How the loss scale moves: it is 1 and stays so unless the precision is fp16.
backend::StepParams step_params(const v1::OptimizerSpec& optimizer, const v1::PrecisionSpec& precision);

struct AdamWTensors {
  engine::Tensor step_scalars;  // f32 [backend::kStepScalars]; the host writes the rate before each run.
  engine::Tensor grad_norm;     // f32 [1], before clipping; of the true gradient, not the scaled one.
};

// Records norm, clip scale and update. `grads` are state.loss_scale() times too large. `weights` get the rounded
// masters unless they are the masters.
AdamWTensors record_adamw(engine::Program& program, const v1::OptimizerSpec& spec, const v1::PrecisionSpec& precision,
                          const parallel::FlatLayout& layout, const parallel::FlatTensors& grads,
                          const AdamWState& state, const parallel::FlatTensors& weights, bool weights_are_masters);

}  // namespace telar::optim
