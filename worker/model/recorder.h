// What a layer needs to record itself: the program, the model's sizes, its weights and gradients.
#pragma once

#include <string>

#include "telar/v1/spec.pb.h"
#include "worker/engine/program.h"
#include "worker/parallel/flat_layout.h"

namespace telar::model {

struct Recorder {
  engine::Program& program;
  const v1::ModelSpec& spec;
  const parallel::FlatLayout& layout;
  const parallel::FlatTensors& weights;  // Compute precision.
  const parallel::FlatTensors& grads;    // f32; undefined in programs without a backward.
  engine::Tensor rope_table;             // f32 [sequence, head_dim]; undefined for learned positions.
  engine::DType act = engine::DType::kF32;
  int64_t batch = 0;  // Sequences of one micro-batch.
  int64_t sequence = 0;
  int64_t logits_bytes = 0;  // Bound on the logits that exist at once; see Head.
  // The first of a step: weight-gradient products write their result, see written_by_product(). Everything else adds
  // to its gradient.
  bool first_micro_batch = false;
  // What the backward computes again instead of finding it kept.
  v1::MemorySpec::Recompute recompute = v1::MemorySpec::NONE;

  int64_t tokens() const { return batch * sequence; }
  bool gpt2() const { return spec.architecture() == v1::GPT2; }
  bool recomputes_cheap_ops() const { return recompute == v1::MemorySpec::SELECTIVE; }
  bool recomputes_layers() const { return recompute == v1::MemorySpec::FULL; }
  // Lives while ops of the forward are recorded again.
  engine::Program::Scope recompute_scope() const { return {program, "recompute/", engine::Phase::kRecompute}; }
  engine::Tensor weight(const std::string& name) const { return weights.group(layout, name); }
  engine::Tensor grad(const std::string& name) const { return grads.group(layout, name); }
  engine::Tensor activation(const std::string& name, int64_t width) const {
    return program.transient(name, act, {tokens(), width}, engine::MemoryClass::kActivations);
  }
  engine::Tensor statistic(const std::string& name) const {
    return program.transient(name, engine::DType::kF32, {tokens()}, engine::MemoryClass::kActivations);
  }
  backend::AttentionDims attention_dims() const {
    return {batch, sequence, spec.heads(), spec.kv_heads(), spec.head_dim()};
  }
};

}  // namespace telar::model
