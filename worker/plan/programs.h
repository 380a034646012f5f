// The programs of one run, recorded without a device: the training step, evaluation, the next token's logits, and the
// first weights. train/ replays them; a planner only measures them. Each rank has its own; together they are the job.
#pragma once

#include <memory>
#include <vector>

#include "worker/engine/program.h"
#include "worker/optim/adamw.h"
#include "worker/parallel/flat_tensors.h"
#include "worker/plan/run_shape.h"

namespace telar::plan {

// One optimizer step. Owns weights, gradients and optimizer state.
struct TrainProgram {
  engine::Program program;
  parallel::FlatTensors weights;  // As parallel::Weights keeps them.
  parallel::FlatTensors grads;    // As the optimizer finds them: parallel::Gradients::reduced().
  optim::AdamWState state;        // state.master aliases `weights` when they are their own masters.
  optim::AdamWTensors optimizer;
  engine::Tensor step_state;    // f32: state.step, and behind it amax_history. All ranks have the same.
  engine::Tensor amax_history;  // f32, RunShape::fp8.delayed.history(); undefined unless scales are delayed.
  engine::Tensor rope_table;    // f32, written once by the host; undefined for learned positions.
  engine::Tensor inputs;        // i32 [micro_batches, micro_tokens], written by the host before each run.
  engine::Tensor targets;       // i32, as inputs; -1 = not counted.
  engine::Tensor starts;        // i32, as inputs: see kernels.h; undefined unless spec.data.reset_at_documents.
  engine::Tensor loss;          // f32 [1]: mean over the global batch, on every rank.
  engine::Tensor valid;         // f32 [1]: counted targets of the global batch.
  // f32 [1], written by the host: above 0 asks to stop. Behind a run, on every rank, what any rank asked: so all ranks
  // leave at the same step.
  engine::Tensor stop;

  // All that the host writes before a run: inputs, targets, the optimizer's scalars, stop; starts last, where there are
  // any.
  std::vector<engine::Tensor> from_host() const;
};
std::unique_ptr<TrainProgram> record_train(const RunShape& shape);

// Loss of one held-out micro-batch. Weights, rope table and the history of greatest magnitudes, where there is one, are
// external: the training program's.
struct EvalProgram {
  engine::Program program;
  parallel::FlatTensors weights;
  engine::Tensor rope_table, amax_history;
  engine::Tensor inputs, targets;  // i32 [micro_tokens]
  engine::Tensor starts;           // As TrainProgram's, of these.
  engine::Tensor loss_sum;         // f32 [1]: over all replicas' valid targets, on every rank.
  engine::Tensor valid;            // f32 [1]: their number.
  engine::Tensor stop;             // As TrainProgram's.
};
std::unique_ptr<EvalProgram> record_eval(const RunShape& shape);

// Logits behind one sequence, the same on every replica. External: as EvalProgram's.
struct LogitsProgram {
  engine::Program program;
  parallel::FlatTensors weights;
  engine::Tensor rope_table, amax_history;
  engine::Tensor inputs;  // i32 [sequence_length]
  engine::Tensor starts;  // As TrainProgram's, of these.
  engine::Tensor row;     // i32 [1]: which position's logits.
  engine::Tensor logits;  // act [tensor ranks, padded share of the vocabulary], on every rank.
  engine::Tensor stop;    // As TrainProgram's.
};
std::unique_ptr<LogitsProgram> record_logits(const RunShape& shape);

// Fills the masters from the seed (each logical element by its own counter, so equal in every layout).
struct InitProgram {
  engine::Program program;
  parallel::FlatTensors masters;  // External.
};
std::unique_ptr<InitProgram> record_init(const RunShape& shape);

// Makes the weights what steps expect behind new masters: rounded, if they are not their own masters, and whole where
// they are whole between steps.
struct RefreshProgram {
  engine::Program program;
  parallel::FlatTensors masters, weights;  // External.
};
std::unique_ptr<RefreshProgram> record_refresh(const RunShape& shape);

}  // namespace telar::plan
