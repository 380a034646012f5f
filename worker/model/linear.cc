#include "worker/model/linear.h"

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Tensor Linear::forward(const Recorder& recorder, Tensor x) const {
  const Tensor weight = recorder.weight(name_ + ".weight");
  const Tensor bias = bias_ ? recorder.weight(name_ + ".bias") : Tensor();
  const int64_t out = weight.shape()[0], in = weight.shape()[1];
  const Tensor y = recorder.activation(name_ + ".y", out);
  const double flops = 2.0 * static_cast<double>(recorder.tokens() * out * in);
  recorder.program.record_kernel(name_, flops, &Kernels::linear, x.in(), weight.in(), bias.in(), y.out());
  return y;
}

Linear::Activated Linear::forward_gelu(const Recorder& recorder, Tensor x, const std::string& after_name) const {
  const Tensor weight = recorder.weight(name_ + ".weight");
  const Tensor bias = bias_ ? recorder.weight(name_ + ".bias") : Tensor();
  const int64_t out = weight.shape()[0], in = weight.shape()[1];
  const Tensor before = recorder.activation(name_ + ".y", out), after = recorder.activation(after_name, out);
  const double flops = 2.0 * static_cast<double>(recorder.tokens() * out * in);
  recorder.program.record_kernel(name_, flops, &Kernels::linear_gelu, x.in(), weight.in(), bias.in(), before.out(),
                                 after.out());
  return {before, after};
}

Tensor Linear::bias_grad(const Recorder& recorder) const { return bias_ ? recorder.grad(name_ + ".bias") : Tensor(); }

Tensor Linear::backward(const Recorder& recorder, Tensor x, Tensor dy, bool with_bias) const {
  const Tensor weight = recorder.weight(name_ + ".weight");
  const Tensor dbias = with_bias ? bias_grad(recorder) : Tensor();
  const int64_t out = weight.shape()[0], in = weight.shape()[1];
  const Tensor dx = recorder.activation(name_ + ".dx", in);
  const double flops = 2.0 * static_cast<double>(recorder.tokens() * out * in);
  recorder.program.record_kernel(name_ + ".dgrad", flops, &Kernels::linear_dgrad, dy.in(), weight.in(), dx.out());
  recorder.program.record_kernel(name_ + ".wgrad", flops, &Kernels::linear_wgrad, dy.in(), x.in(),
                                 !recorder.first_micro_batch, recorder.grad(name_ + ".weight").inout(), dbias.inout());
  return dx;
}

}  // namespace telar::model
