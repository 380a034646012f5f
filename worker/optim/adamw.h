// AdamW over the flat buckets, behind a clip by the global norm.
#pragma once

#include "telar/v1/spec.pb.h"
#include "worker/engine/program.h"
#include "worker/parallel/flat_layout.h"

namespace telar::optim {

// The optimizer's state, a flat f32 tensor a bucket each. In fp32 the weights are their own masters.
struct AdamWState {
  parallel::FlatTensors master;
  parallel::FlatTensors exp_avg;
  parallel::FlatTensors exp_avg_sq;
};

struct AdamWTensors {
  engine::Tensor step_scalars;  // f32 [backend::kStepScalars], written by the host before each run.
  engine::Tensor grad_norm;     // f32 [1], before clipping.
};

// Records norm, clip scale and update. `weights` get the rounded masters unless they are the masters.
AdamWTensors record_adamw(engine::Program& program, const v1::OptimizerSpec& spec, const parallel::FlatLayout& layout,
                          const parallel::FlatTensors& grads, const AdamWState& state,
                          const parallel::FlatTensors& weights, bool weights_are_masters);

}  // namespace telar::optim
