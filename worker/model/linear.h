// y = x W^T + b, with its two backward products. Keeps nothing of the forward.
//
// Tensor parallelism splits a layer's products in pairs (Shoeybi et al. 2019): of the first, whose inputs are local
// tokens, each rank has some outputs of all tokens; the second takes these as its inputs and adds up over the ranks,
// which gives local tokens again. The gathers and scatters between are recorded here, whole, and the products as ones
// that can be cut by tokens: engine/decompose.h makes them overlap.
#pragma once

#include <string>

#include "worker/model/recorder.h"

namespace telar::model {

class Linear {
 public:
  enum class Split : uint8_t {
    kOutputs,  // x: local tokens, y: all tokens, this rank's columns.
    kInputs,   // x: all tokens, this rank's columns, y: local tokens. The bias is added once.
  };
  // Uses "<name>.weight" [out, in] and, if `bias`, "<name>.bias".
  Linear(std::string name, bool bias, Split split) : name_(std::move(name)), bias_(bias), split_(split) {}

  // x: act [.., in] -> act [.., out].
  engine::Tensor forward(const Recorder& recorder, engine::Tensor x) const;
  // As forward(), which gives `before`, with its GELU as `after`. kOutputs only.
  struct Activated {
    engine::Tensor before, after;
  };
  Activated forward_gelu(const Recorder& recorder, engine::Tensor x, const std::string& after_name) const;
  // x: what forward got, or the same computed again; dy: act [.., out] -> act [.., in]. The gradients of the weight
  // and, if `with_bias`, of the bias accumulate; the weight's first one is written.
  engine::Tensor backward(const Recorder& recorder, engine::Tensor x, engine::Tensor dy, bool with_bias = true) const;
  // For whoever accumulates the bias's gradient elsewhere. Undefined without a bias.
  engine::Tensor bias_grad(const Recorder& recorder) const;

 private:
  engine::Tensor bias(const Recorder& recorder) const;
  void weight_gradient(const Recorder& recorder, engine::Tensor x, engine::Tensor dy, bool with_bias) const;

  std::string name_;
  bool bias_;
  Split split_;
};

}  // namespace telar::model
