#include "worker/model/mlp.h"

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Tensor Mlp::forward(const Recorder& recorder, Tensor x) {
  before_ = inner_.forward(recorder, x);  // GPT-2 [tokens, ffn], Llama [tokens, 2 ffn]
  const Tensor after = recorder.activation(prefix_ + "mlp.act", recorder.spec.ffn());
  recorder.program.record(prefix_ + (gpt2_ ? "gelu" : "swiglu"), gpt2_ ? &Kernels::gelu : &Kernels::swiglu,
                          before_.in(), after.out());
  return down_.forward(recorder, after);
}

Tensor Mlp::backward(const Recorder& recorder, Tensor dy) {
  const Tensor dafter = down_.backward(recorder, dy);
  const Tensor dbefore = recorder.activation(prefix_ + "mlp.dact", before_.shape().cols());
  recorder.program.record(prefix_ + (gpt2_ ? "gelu.backward" : "swiglu.backward"),
                          gpt2_ ? &Kernels::gelu_backward : &Kernels::swiglu_backward, dafter.in(), before_.in(),
                          dbefore.out());
  return inner_.backward(recorder, dbefore);
}

}  // namespace telar::model
