#include "worker/model/mlp.h"

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Tensor Mlp::forward(const Recorder& recorder, Tensor x, Tensor x_amax) {
  expand(recorder, x, x_amax);
  return down_.forward(recorder, after_, after_amax_);
}

void Mlp::expand(const Recorder& recorder, Tensor x, Tensor x_amax) {
  after_amax_ = down_.input_amax(recorder);
  if (gpt2_) {
    const Linear::Activated up =
        inner_.forward_gelu(recorder, x, prefix_ + "mlp.act", x_amax, after_amax_);  // [tokens, ffn]
    before_ = up.before;
    after_ = up.after;
    return;
  }
  before_ = inner_.forward(recorder, x, x_amax);  // [tokens, 2 ffn]
  after_ = activate(recorder, after_amax_);
}

Tensor Mlp::activate(const Recorder& recorder, Tensor amax) const {
  const int64_t width = before_.shape().cols() / (gpt2_ ? 1 : 2);
  const Tensor after = recorder.activation(prefix_ + "mlp.act", width);
  if (gpt2_) {
    recorder.program.record(prefix_ + "gelu", &Kernels::gelu, before_.in(), after.out(), amax.out());
  } else {
    recorder.program.record(prefix_ + "swiglu", &Kernels::swiglu, before_.in(), after.out(), amax.out());
  }
  return after;
}

Tensor Mlp::backward(const Recorder& recorder, Norm& norm, Tensor dy) {
  if (recorder.recomputes_cheap_ops()) {
    const engine::Program::Scope again = recorder.recompute_scope();
    after_ = activate(recorder, Tensor());
  }
  const Tensor dafter = down_.backward(recorder, after_, dy);
  const Tensor dbefore = recorder.activation(prefix_ + "mlp.dact", before_.shape().cols());
  const Tensor amax = inner_.output_grad_amax(recorder);
  if (gpt2_) {
    // Sums the bias's gradient as well: it has dbefore at hand.
    recorder.program.record(prefix_ + "gelu.backward", &Kernels::gelu_backward, dafter.in(), before_.in(),
                            dbefore.out(), inner_.bias_grad(recorder).inout(), amax.out());
    return inner_.backward(recorder, norm.output(recorder), dbefore, /*with_bias=*/false, amax);
  }
  recorder.program.record(prefix_ + "swiglu.backward", &Kernels::swiglu_backward, dafter.in(), before_.in(),
                          dbefore.out(), amax.out());
  return inner_.backward(recorder, norm.output(recorder), dbefore, /*with_bias=*/true, amax);
}

}  // namespace telar::model
