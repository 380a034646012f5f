// What the programs of this folder are made from.
#pragma once

#include <string>

#include "worker/model/recorder.h"
#include "worker/plan/run_shape.h"

namespace telar::plan {

using parallel::FlatTensors;

// The optimizer's state and what is added to the weights: whole, or this rank's shards.
inline FlatTensors::Extent state_extent(const RunShape& shape) {
  return shape.sharded() ? FlatTensors::Extent::kShard : FlatTensors::Extent::kWhole;
}
inline FlatTensors::Extent weight_extent(const RunShape& shape) {
  return shape.keeps_weight_shards() ? FlatTensors::Extent::kShard : FlatTensors::Extent::kWhole;
}

// Of the weights, as TrainProgram has them, what the optimizer of this rank updates.
inline FlatTensors updated_weights(const RunShape& shape, const FlatTensors& weights) {
  return state_extent(shape) == weight_extent(shape) ? weights : weights.shards(shape.layout);
}

inline FlatTensors own(engine::Program& program, const RunShape& shape, const std::string& name, engine::DType dtype,
                       engine::MemoryClass memory_class, FlatTensors::Extent extent) {
  return FlatTensors(program, shape.layout, name, dtype, memory_class, FlatTensors::Owner::kProgram, extent);
}
inline FlatTensors borrow(engine::Program& program, const RunShape& shape, const std::string& name, engine::DType dtype,
                          FlatTensors::Extent extent) {
  return FlatTensors(program, shape.layout, name, dtype, engine::MemoryClass::kWeights, FlatTensors::Owner::kExternal,
                     extent);
}

inline bool uses_rope(const RunShape& shape) { return shape.spec.model().architecture() == v1::LLAMA; }
inline engine::Shape rope_shape(const RunShape& shape) {
  return {shape.spec.batch().sequence_length(), shape.spec.model().head_dim()};
}

// Where documents start, among what the host writes before a run; undefined where that does not matter.
inline engine::Tensor starts(engine::Program& program, const RunShape& shape, engine::Shape tokens) {
  if (!shape.spec.data().reset_at_documents()) return engine::Tensor();
  return program.persistent("starts", engine::DType::kI32, tokens, engine::MemoryClass::kIo);
}

// Combines a scalar over all ranks of the job; nothing to do for one.
void reduce_over_world(engine::Program& program, const RunShape& shape, const std::string& name, engine::Tensor x,
                       backend::ReduceOp op = backend::ReduceOp::kSum);
// As a sum to which only some ranks contribute what they have.
void sum_over_world(engine::Program& program, const RunShape& shape, const std::string& name, engine::Tensor x,
                    bool contributes);
// Counts the global batch's valid targets, each once.
void count_valid(engine::Program& program, const RunShape& shape, engine::Tensor targets, engine::Tensor valid);

// What FP8 tensors are scaled by. `history`: of the job's tensors, undefined unless scales are delayed. `observes`: see
// there.
parallel::Fp8Scales fp8_scales(engine::Program& program, const RunShape& shape, engine::Tensor history, bool observes);
// The weights that layers multiply in FP8, by `scales`, which outlive them.
parallel::Fp8Weights fp8_weights(const RunShape& shape, const parallel::Fp8Scales& scales);
// The history as programs have it that the training program lends it; undefined unless scales are delayed.
inline engine::Tensor borrow_history(engine::Program& program, const RunShape& shape) {
  if (!shape.scales_are_delayed()) return engine::Tensor();
  return program.external("amax_history", engine::DType::kF32, shape.fp8.delayed.history());
}

// `starts`: of the batch, or undefined. All must outlive it.
model::Recorder recorder(engine::Program& program, const RunShape& shape, parallel::Weights& weights,
                         const parallel::Fp8Scales& scales, engine::Tensor rope_table, engine::Tensor starts,
                         int64_t batch);

// What flows from stage `from_stage` to its neighbour `to_stage`, forward or back, where that is on another rank: act
// [local tokens, hidden].
engine::Tensor record_recv(const model::Recorder& recorder, const RunShape& shape, const std::string& name,
                           int from_stage, int to_stage);
void record_send(const model::Recorder& recorder, const RunShape& shape, const std::string& name, engine::Tensor x,
                 int from_stage, int to_stage);

// Behind all else: cuts tensor-parallel collectives up, if the spec wants that.
void overlap_tensor(engine::Program& program, const RunShape& shape);

// This rank's stages forward, for programs that have no backward; returns the last one's output where that is the
// head's, else undefined.
engine::Tensor record_forward(const model::Recorder& recorder, const RunShape& shape, engine::Tensor ids);

}  // namespace telar::plan
