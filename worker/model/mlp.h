// The feed-forward block: up, GELU, down (GPT-2) or gate and up, SwiGLU, down (Llama).
#pragma once

#include <string>

#include "worker/model/linear.h"
#include "worker/model/norm.h"

namespace telar::model {

class Mlp {
 public:
  Mlp(const v1::ModelSpec& spec, const std::string& prefix)
      : prefix_(prefix),
        gpt2_(spec.architecture() == v1::GPT2),
        inner_(prefix + (gpt2_ ? "up" : "gate_up"), gpt2_, Linear::Split::kOutputs),
        down_(prefix + "down", gpt2_, Linear::Split::kInputs) {}

  // x: act [local tokens, hidden] -> the same, not yet added to the residual stream.
  // x_amax: see Linear::forward; input_amax() is for it.
  engine::Tensor forward(const Recorder& recorder, engine::Tensor x, engine::Tensor x_amax);
  engine::Tensor input_amax(const Recorder& recorder) const { return inner_.input_amax(recorder); }
  // All of forward but its last product: everything that the backward reads.
  void expand(const Recorder& recorder, engine::Tensor x, engine::Tensor x_amax);
  // `norm`: its output was forward's x.
  engine::Tensor backward(const Recorder& recorder, Norm& norm, engine::Tensor dy);
  // Whether the backward reads norm's output.
  bool reads_input(const Recorder& recorder) const { return inner_.reads_input(recorder); }
  // What the backward reads of the forward's.
  void for_each_kept(const Recorder& recorder, const TensorVisitor& visit) {
    visit(before_);
    if (!recorder.recomputes_cheap_ops() && down_.reads_input(recorder)) visit(after_);
    inner_.for_each_kept(recorder, visit);
    down_.for_each_kept(recorder, visit);
  }

 private:
  // The activation alone, from before_: on the CPU the same bits whenever it runs. Where a GPU's forward has it as the
  // epilogue of the product before, which then need not round before_ first, a recomputed one may differ in last bits.
  engine::Tensor activate(const Recorder& recorder, engine::Tensor amax) const;

  std::string prefix_;
  bool gpt2_;
  Linear inner_, down_;
  engine::Tensor before_, after_;  // The activation's input and output.
  engine::Tensor after_amax_;      // See Linear::forward.
};

}  // namespace telar::model
