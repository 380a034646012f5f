#include "worker/model/mlp.h"

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Tensor Mlp::forward(const Recorder& recorder, Tensor x) {
  expand(recorder, x);
  return down_.forward(recorder, after_);
}

void Mlp::expand(const Recorder& recorder, Tensor x) {
  before_ = inner_.forward(recorder, x);  // GPT-2 [tokens, ffn], Llama [tokens, 2 ffn]
  after_ = activate(recorder);
}

Tensor Mlp::activate(const Recorder& recorder) const {
  const Tensor after = recorder.activation(prefix_ + "mlp.act", recorder.spec.ffn());
  recorder.program.record(prefix_ + (gpt2_ ? "gelu" : "swiglu"), gpt2_ ? &Kernels::gelu : &Kernels::swiglu,
                          before_.in(), after.out());
  return after;
}

Tensor Mlp::backward(const Recorder& recorder, Norm& norm, Tensor dy) {
  if (recorder.recomputes_cheap_ops()) {
    const engine::Program::Scope again = recorder.recompute_scope();
    after_ = activate(recorder);
  }
  const Tensor dafter = down_.backward(recorder, after_, dy);
  const Tensor dbefore = recorder.activation(prefix_ + "mlp.dact", before_.shape().cols());
  recorder.program.record(prefix_ + (gpt2_ ? "gelu.backward" : "swiglu.backward"),
                          gpt2_ ? &Kernels::gelu_backward : &Kernels::swiglu_backward, dafter.in(), before_.in(),
                          dbefore.out());
  return inner_.backward(recorder, norm.output(recorder), dbefore);
}

}  // namespace telar::model
