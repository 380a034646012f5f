#include "worker/model/norm.h"

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Norm::Output Norm::forward(const Recorder& recorder, Tensor residual, Tensor delta, Tensor y_amax) {
  const Tensor sum =
      delta.defined() ? recorder.local_activation(name_ + ".residual", recorder.spec.hidden()) : Tensor();
  x_ = delta.defined() ? sum : residual;
  normalize(recorder, residual, delta, sum, y_amax);
  return {x_, y_, y_amax};
}

Tensor Norm::output(const Recorder& recorder) {
  if (!recorder.recomputes_cheap_ops()) return y_;
  const engine::Program::Scope again = recorder.recompute_scope();
  normalize(recorder, x_, Tensor(), Tensor(), Tensor());  // The statistics too: the kernel has them anyway.
  return y_;
}

void Norm::normalize(const Recorder& recorder, Tensor residual, Tensor delta, Tensor sum, Tensor y_amax) {
  const float epsilon = static_cast<float>(recorder.spec.norm_epsilon());
  y_ = recorder.local_activation(name_ + ".y", recorder.spec.hidden());
  rstd_ = recorder.local_statistic(name_ + ".rstd");
  const Tensor weight = recorder.weight(name_ + ".weight");
  if (recorder.gpt2()) {
    mean_ = recorder.local_statistic(name_ + ".mean");
    recorder.program.record(name_, &Kernels::layer_norm, residual.in(), delta.in(), weight.in(),
                            recorder.weight(name_ + ".bias").in(), epsilon, sum.out(), y_.out(), mean_.out(),
                            rstd_.out(), y_amax.out());
  } else {
    recorder.program.record(name_, &Kernels::rms_norm, residual.in(), delta.in(), weight.in(), epsilon, sum.out(),
                            y_.out(), rstd_.out(), y_amax.out());
  }
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
