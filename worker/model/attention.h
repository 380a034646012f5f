// Causal self-attention with grouped queries: packed projection, rotary positions (Llama), attention, projection.
#pragma once

#include <string>

#include "worker/model/linear.h"
#include "worker/model/norm.h"

namespace telar::model {

class Attention {
 public:
  // `prefix` is the layer's: "layers.3.".
  Attention(const v1::ModelSpec& spec, const std::string& prefix)
      : prefix_(prefix),
        qkv_(prefix + "qkv", spec.qkv_bias(), Linear::Split::kOutputs),
        output_(prefix + "o", spec.architecture() == v1::GPT2, Linear::Split::kInputs) {}

  // x: act [local tokens, hidden] -> the same, not yet added to the residual stream.
  // x_amax: see Linear::forward; input_amax() is for it.
  engine::Tensor forward(const Recorder& recorder, engine::Tensor x, engine::Tensor x_amax);
  engine::Tensor input_amax(const Recorder& recorder) const { return qkv_.input_amax(recorder); }
  // `norm`: its output was forward's x.
  engine::Tensor backward(const Recorder& recorder, Norm& norm, engine::Tensor dy);
  // Whether the backward reads norm's output.
  bool reads_input(const Recorder& recorder) const { return qkv_.reads_input(recorder); }
  // What the backward reads of the forward's.
  void for_each_kept(const Recorder& recorder, const TensorVisitor& visit) {
    for (engine::Tensor* kept : {&packed_, &context_, &lse_}) visit(*kept);
    qkv_.for_each_kept(recorder, visit);
    output_.for_each_kept(recorder, visit);
  }

 private:
  std::string prefix_;
  Linear qkv_, output_;
  engine::Tensor packed_, context_, lse_;
};

}  // namespace telar::model
