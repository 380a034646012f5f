#include "worker/model/linear.h"

namespace telar::model {

using backend::Kernels;
using engine::by_rows;
using engine::Tensor;

namespace {

double product_flops(const Recorder& recorder, const Tensor& weight) {
  return 2.0 * static_cast<double>(recorder.tokens() * weight.elements());
}

}  // namespace

// Where outputs are added up over ranks, one of them brings the bias in.
Tensor Linear::bias(const Recorder& recorder) const {
  if (!bias_ || (split_ == Split::kInputs && recorder.tensor_rank() != 0)) return Tensor();
  return recorder.weight(name_ + ".bias");
}

Tensor Linear::forward(const Recorder& recorder, Tensor x) const {
  if (split_ == Split::kOutputs) x = recorder.gather_tokens(name_ + ".x", x);
  const Tensor weight = recorder.weight(name_ + ".weight");
  const Tensor y = recorder.activation(name_ + ".y", weight.shape()[0]);
  recorder.program.record_kernel(name_, product_flops(recorder, weight), &Kernels::linear, by_rows(x.in()), weight.in(),
                                 bias(recorder).in(), by_rows(y.out()));
  return split_ == Split::kInputs ? recorder.scatter_tokens(name_ + ".y", y) : y;
}

Linear::Activated Linear::forward_gelu(const Recorder& recorder, Tensor x, const std::string& after_name) const {
  x = recorder.gather_tokens(name_ + ".x", x);
  const Tensor weight = recorder.weight(name_ + ".weight");
  const int64_t out = weight.shape()[0];
  const Tensor before = recorder.activation(name_ + ".y", out), after = recorder.activation(after_name, out);
  recorder.program.record_kernel(name_, product_flops(recorder, weight), &Kernels::linear_gelu, by_rows(x.in()),
                                 weight.in(), bias(recorder).in(), by_rows(before.out()), by_rows(after.out()));
  return {before, after};
}

Tensor Linear::bias_grad(const Recorder& recorder) const { return bias_ ? recorder.grad(name_ + ".bias") : Tensor(); }

Tensor Linear::backward(const Recorder& recorder, Tensor x, Tensor dy, bool with_bias) const {
  // The input is gathered again rather than kept: the products hide it, as they hide the scatter behind the first.
  if (split_ == Split::kInputs) dy = recorder.gather_tokens(name_ + ".dy", dy);
  if (split_ == Split::kOutputs) x = recorder.gather_tokens(name_ + ".x", x);
  const Tensor weight = recorder.weight(name_ + ".weight");
  const Tensor dx = recorder.activation(name_ + ".dx", weight.shape()[1]);
  recorder.program.record_kernel(name_ + ".dgrad", product_flops(recorder, weight), &Kernels::linear_dgrad,
                                 by_rows(dy.in()), weight.in(), by_rows(dx.out()));
  const Tensor result = split_ == Split::kOutputs ? recorder.scatter_tokens(name_ + ".dx", dx) : dx;
  // What flows in here of the residual stream's gradient is added to in place later.
  if (split_ == Split::kInputs) dy = recorder.kept_for_weight_gradient(name_ + ".dy", dy);
  weight_gradient(recorder, x, dy, with_bias);
  return result;
}

void Linear::weight_gradient(const Recorder& recorder, Tensor x, Tensor dy, bool with_bias) const {
  recorder.weight_gradient([recorder, linear = *this, x, dy, with_bias] {
    const std::string weight = linear.name_ + ".weight";
    const bool adds = recorder.grads->adds(weight);
    const Tensor dweight = recorder.grad(weight), dbias = with_bias ? linear.bias_grad(recorder) : Tensor();
    recorder.program.record_kernel(linear.name_ + ".wgrad", product_flops(recorder, dweight), &Kernels::linear_wgrad,
                                   dy.in(), x.in(), adds, dweight.inout(), dbias.inout());
  });
}

}  // namespace telar::model
