#include "worker/model/norm.h"

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Norm::Output Norm::forward(const Recorder& recorder, Tensor residual, Tensor delta) {
  const int64_t hidden = recorder.spec.hidden();
  const float epsilon = static_cast<float>(recorder.spec.norm_epsilon());
  const Tensor sum = delta.defined() ? recorder.activation(name_ + ".residual", hidden) : Tensor();
  const Tensor y = recorder.activation(name_ + ".y", hidden);
  x_ = delta.defined() ? sum : residual;
  rstd_ = recorder.statistic(name_ + ".rstd");
  const Tensor weight = recorder.weight(name_ + ".weight");
  if (recorder.gpt2()) {
    mean_ = recorder.statistic(name_ + ".mean");
    recorder.program.record(name_, &Kernels::layer_norm, residual.in(), delta.in(), weight.in(),
                            recorder.weight(name_ + ".bias").in(), epsilon, sum.out(), y.out(), mean_.out(),
                            rstd_.out());
  } else {
    recorder.program.record(name_, &Kernels::rms_norm, residual.in(), delta.in(), weight.in(), epsilon, sum.out(),
                            y.out(), rstd_.out());
  }
  return {x_, y};
}

void Norm::backward(const Recorder& recorder, Tensor dy, Tensor dresidual) {
  const Tensor weight = recorder.weight(name_ + ".weight");
  const Tensor dweight = recorder.grad(name_ + ".weight");
  if (recorder.gpt2()) {
    recorder.program.record(name_ + ".backward", &Kernels::layer_norm_backward, dy.in(), x_.in(), weight.in(),
                            mean_.in(), rstd_.in(), dresidual.inout(), dweight.inout(),
                            recorder.grad(name_ + ".bias").inout());
  } else {
    recorder.program.record(name_ + ".backward", &Kernels::rms_norm_backward, dy.in(), x_.in(), weight.in(), rstd_.in(),
                            dresidual.inout(), dweight.inout());
  }
}

}  // namespace telar::model
