// What a layer needs to record itself: the program, the model's sizes, its weights and gradients, and how its tensors
// are split.
//
// With tensor parallelism a layer's products are split over the ranks of a group, by columns and then by rows, and
// between them (norms, residual stream) each rank has its share of the micro-batch's tokens (sequence parallelism,
// Korthikanti et al. 2022). So a tensor is either "local", of local_tokens(), or whole in its tokens.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "telar/v1/spec.pb.h"
#include "worker/engine/program.h"
#include "worker/model/offload.h"
#include "worker/parallel/gradients.h"
#include "worker/parallel/groups.h"
#include "worker/parallel/weights.h"

namespace telar::model {

// Weight gradients that a pipeline schedule runs apart from the rest of the backward.
using Deferred = std::vector<std::function<void()>>;

// How layers multiply in 8-bit floats: weights and activations in E4M3.
struct Fp8 {
  std::vector<bool> layers;                          // Of the model: which do.
  engine::DType gradients = engine::DType::kF8E5M2;  // Of what flows back.
  bool fast_forward = true;                          // See Kernels::fp8_product; the backward's never are.
  bool blocks = false;                               // Scaled in blocks.
  parallel::Delayed delayed;                         // Without entries: scales are not delayed.
};

struct Recorder {
  engine::Program& program;
  const v1::ModelSpec& spec;
  parallel::Weights& weights;            // Compute precision.
  parallel::Gradients* grads = nullptr;  // None in programs without a backward.
  const parallel::Groups& groups;
  engine::Tensor rope_table;  // f32 [sequence, head_dim]; undefined for learned positions.
  engine::Tensor starts;  // i32 [tokens], whole on every rank: see kernels.h; undefined: documents are not told apart.
  engine::DType act = engine::DType::kF32;
  const Fp8* fp8 = nullptr;                     // Of the layer that is being recorded; none: its products are in `act`.
  const parallel::Fp8Scales* scales = nullptr;  // With fp8.
  int64_t batch = 0;                            // Sequences of one micro-batch.
  int64_t sequence = 0;
  int64_t logits_bytes = 0;  // Bound on the logits that exist at once; see Head.
  // What the backward computes again instead of finding it kept.
  v1::MemorySpec::Recompute recompute = v1::MemorySpec::NONE;
  bool backward_follows = false;  // This stage's backward comes right behind its forward on this rank.
  Offload* offload = nullptr;     // None: what the backward reads stays on the device.
  Deferred* deferred = nullptr;   // Where weight gradients go; none: they are recorded with the rest.

  int tensor_size() const { return groups.size(parallel::Role::kTensor); }
  int tensor_rank() const { return groups.rank(parallel::Role::kTensor); }
  int64_t tokens() const { return batch * sequence; }
  int64_t local_tokens() const { return tokens() / tensor_size(); }
  bool gpt2() const { return spec.architecture() == v1::GPT2; }
  bool recomputes_cheap_ops() const { return recompute == v1::MemorySpec::SELECTIVE; }
  bool recomputes_nothing() const { return !recomputes_cheap_ops() && !recomputes_layers(); }
  bool recomputes_layers() const { return recompute == v1::MemorySpec::FULL; }
  // Lives while ops of the forward are recorded again.
  engine::Program::Scope recompute_scope() const { return {program, "recompute/", engine::Phase::kRecompute}; }
  engine::Tensor weight(const std::string& name) const { return weights.group(name); }
  engine::Tensor grad(const std::string& name) const { return grads->group(name); }
  engine::Tensor activation(const std::string& name, int64_t width) const {
    return program.transient(name, act, {tokens(), width}, engine::MemoryClass::kActivations);
  }
  engine::Tensor local_activation(const std::string& name, int64_t width) const {
    return program.transient(name, act, {local_tokens(), width}, engine::MemoryClass::kActivations);
  }
  engine::Tensor local_statistic(const std::string& name) const {
    return program.transient(name, engine::DType::kF32, {local_tokens()}, engine::MemoryClass::kActivations);
  }
  // This rank's heads.
  backend::AttentionDims attention_dims() const {
    const int64_t heads = int64_t{spec.heads()} / tensor_size();
    const int64_t kv_heads = std::max<int64_t>(1, int64_t{spec.kv_heads()} / tensor_size());
    return {batch, sequence, heads, kv_heads, spec.head_dim()};
  }
  backend::VocabSlice vocab_slice() const;

  // Between local and whole tensors; without tensor parallelism the tensor itself. gather: [local tokens, C] of each
  // rank -> [tokens, C]. scatter: the sum over the ranks of [tokens, C] -> each rank's [local tokens, C].
  engine::Tensor gather_tokens(const std::string& name, engine::Tensor local) const;
  engine::Tensor scatter_tokens(const std::string& name, engine::Tensor partial) const;
  // x becomes the greatest of the ranks' x.
  void max_over_tensor_ranks(const std::string& name, engine::Tensor x) const;
  // Records a weight gradient, now or when the schedule says. What it reads must stay as it is.
  void weight_gradient(std::function<void()> record) const;
  // `x`, which will be changed in place, as a weight gradient may read it.
  engine::Tensor kept_for_weight_gradient(const std::string& name, engine::Tensor x) const;
};

}  // namespace telar::model
