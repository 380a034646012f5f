// AdamW over the flat buckets, behind a clip by the global norm.
#pragma once

#include <functional>

#include "telar/v1/spec.pb.h"
#include "worker/engine/program.h"
#include "worker/parallel/flat_tensors.h"
#include "worker/parallel/groups.h"

namespace telar::optim {

// The optimizer's state. Of the flat tensors, an f32 one a bucket each: whole, or where replicas split their state this
// rank's shards. In fp32 the weights are their own masters.
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
  engine::Tensor grad_norm;     // f32 [1], before clipping; of the true gradient, not the scaled one. On every rank.
};

// What a step hands to the optimizer.
struct AdamWInputs {
  const parallel::FlatLayout& layout;
  const parallel::Groups& groups;
  bool sharded = false;                        // `grads`, the state and `weights` are this rank's shards.
  const parallel::FlatTensors& grads;          // state.loss_scale() times too large.
  const parallel::FlatTensors& weights;        // Get the rounded masters; undefined where they are the masters.
  std::function<void(size_t bucket)> updated;  // Records what comes behind a bucket's update.
};

// Records norm, clip scale and updates, from the lowest units' bucket on. The norm is summed over the ranks shard by
// shard whoever updates what, so that it does not depend on how state is split.
AdamWTensors record_adamw(engine::Program& program, const v1::OptimizerSpec& spec, const v1::PrecisionSpec& precision,
                          const AdamWInputs& inputs, const AdamWState& state);

}  // namespace telar::optim
