// y = x W^T + b, with its two backward products. Keeps nothing of the forward.
#pragma once

#include <string>

#include "worker/model/recorder.h"

namespace telar::model {

class Linear {
 public:
  // Uses "<name>.weight" [out, in] and, if `bias`, "<name>.bias".
  Linear(std::string name, bool bias) : name_(std::move(name)), bias_(bias) {}

  // x: act [tokens, in] -> act [tokens, out].
  engine::Tensor forward(const Recorder& recorder, engine::Tensor x) const;
  // As forward(), which gives `before`, with its GELU as `after`.
  struct Activated {
    engine::Tensor before, after;
  };
  Activated forward_gelu(const Recorder& recorder, engine::Tensor x, const std::string& after_name) const;
  // x: what forward got, or the same computed again; dy: act [tokens, out] -> act [tokens, in]; the weight's gradient
  // accumulates or, in a step's first micro-batch, is written; the bias's accumulates, if `with_bias`.
  engine::Tensor backward(const Recorder& recorder, engine::Tensor x, engine::Tensor dy, bool with_bias = true) const;
  // For whoever accumulates the bias's gradient elsewhere. Undefined without a bias.
  engine::Tensor bias_grad(const Recorder& recorder) const;

 private:
  std::string name_;
  bool bias_;
};

}  // namespace telar::model
