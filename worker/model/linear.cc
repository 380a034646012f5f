#include "worker/model/linear.h"

namespace telar::model {

using backend::Kernels;
using engine::by_rows;
using engine::DType;
using engine::MemoryClass;
using engine::Tensor;
using parallel::Copies;
using parallel::Operand;
using parallel::Quantized;

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

Tensor Linear::forward(const Recorder& recorder, Tensor x, Tensor x_amax) {
  if (recorder.fp8 != nullptr) {
    const Tensor y = fp8_forward(recorder, x, x_amax);
    return split_ == Split::kInputs ? recorder.scatter_tokens(name_ + ".y", y) : y;
  }
  if (split_ == Split::kOutputs) x = recorder.gather_tokens(name_ + ".x", x);
  const Tensor weight = recorder.weight(name_ + ".weight");
  const Tensor y = recorder.activation(name_ + ".y", weight.shape()[0]);
  recorder.program.record_kernel(name_, product_flops(recorder, weight), &Kernels::linear, by_rows(x.in()), weight.in(),
                                 bias(recorder).in(), by_rows(y.out()));
  return split_ == Split::kInputs ? recorder.scatter_tokens(name_ + ".y", y) : y;
}

Linear::Activated Linear::forward_gelu(const Recorder& recorder, Tensor x, const std::string& after_name, Tensor x_amax,
                                       Tensor after_amax) {
  if (recorder.fp8 != nullptr) {
    const Tensor before = fp8_forward(recorder, x, x_amax);
    const Tensor after = recorder.activation(after_name, before.shape().cols());
    recorder.program.record(name_ + ".gelu", &Kernels::gelu, before.in(), after.out(), after_amax.out());
    return {before, after};
  }
  x = recorder.gather_tokens(name_ + ".x", x);
  const Tensor weight = recorder.weight(name_ + ".weight");
  const int64_t out = weight.shape()[0];
  const Tensor before = recorder.activation(name_ + ".y", out), after = recorder.activation(after_name, out);
  recorder.program.record_kernel(name_, product_flops(recorder, weight), &Kernels::linear_gelu, by_rows(x.in()),
                                 weight.in(), bias(recorder).in(), by_rows(before.out()), by_rows(after.out()));
  return {before, after};
}

Tensor Linear::bias_grad(const Recorder& recorder) const { return bias_ ? recorder.grad(name_ + ".bias") : Tensor(); }

Tensor Linear::backward(const Recorder& recorder, Tensor x, Tensor dy, bool with_bias, Tensor dy_amax) const {
  if (recorder.fp8 != nullptr) return fp8_backward(recorder, x, dy, with_bias, dy_amax);
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

// Blocks have the scales of a token in many rows, so the product is not cut by tokens.
void Linear::fp8_product(const Recorder& recorder, const std::string& name, const Quantized& x, Tensor weight,
                         Tensor weight_inverse, Tensor bias, bool fast, Tensor y) const {
  const double flops = product_flops(recorder, weight);
  if (recorder.scales->are_in_blocks()) {
    recorder.program.record_kernel(name, flops, &Kernels::fp8_product, x.rows.in(), x.rows_inverse.in(), weight.in(),
                                   weight_inverse.in(), bias.in(), fast, y.out());
    return;
  }
  recorder.program.record_kernel(name, flops, &Kernels::fp8_product, by_rows(x.rows.in()), x.rows_inverse.in(),
                                 weight.in(), weight_inverse.in(), bias.in(), fast, by_rows(y.out()));
}

Tensor Linear::fp8_forward(const Recorder& recorder, Tensor x, Tensor x_amax) {
  const parallel::Fp8Scales& scales = *recorder.scales;
  const Quantized weight = recorder.weights.quantized(name_, recorder.grads != nullptr ? Copies::kBoth : Copies::kRows);
  // What ranks have shares of is scaled as the whole, and gathered rounded: half the bytes. But blocks' scales would
  // come in another order.
  const bool gathers = split_ == Split::kOutputs && recorder.tensor_size() > 1;
  const bool gathers_rounded = gathers && !scales.are_in_blocks();
  if (gathers && !gathers_rounded) x = recorder.gather_tokens(name_ + ".x", x);
  input_amax_ = scales.amax(name_ + ".x", name_, Operand::kInput, x, x_amax);
  if (gathers_rounded) recorder.max_over_tensor_ranks(name_ + ".x.amax", input_amax_);
  Quantized q = scales.quantize(name_ + ".x", name_, Operand::kInput, x, input_amax_, DType::kF8E4M3,
                                keeps_input(recorder) ? Copies::kBoth : Copies::kRows);
  if (gathers_rounded) q.rows = recorder.gather_tokens(name_ + ".x", q.rows);
  if (keeps_input(recorder)) input_ = q;
  const Tensor y = recorder.activation(name_ + ".y", weight.rows.shape()[0]);
  fp8_product(recorder, name_, q, weight.rows, weight.rows_inverse, bias(recorder), recorder.fp8->fast_forward, y);
  return y;
}

// The bytes of the transposed copy are those of the other, wherever that comes from.
void Linear::record_columns(const Recorder& recorder, const std::string& name, Quantized& q) const {
  q.columns = recorder.program.transient(name + ".fp8.transposed", q.rows.dtype(),
                                         {q.rows.shape().cols(), q.rows.shape().rows()}, MemoryClass::kActivations);
  recorder.program.record(name + ".transpose", &Kernels::transpose, q.rows.in(), q.columns.out());
  q.columns_inverse = q.rows_inverse;
}

Tensor Linear::fp8_backward(const Recorder& recorder, Tensor x, Tensor dy, bool with_bias, Tensor dy_amax) const {
  const parallel::Fp8Scales& scales = *recorder.scales;
  // As in the forward; but a bias's gradient wants all of dy as it is.
  const bool over_ranks = recorder.tensor_size() > 1, rounded_first = over_ranks && !scales.are_in_blocks();
  const bool gathers_dy = over_ranks && split_ == Split::kInputs;
  const bool gathers_dy_rounded = gathers_dy && rounded_first && !(bias_ && with_bias);
  if (gathers_dy && !gathers_dy_rounded) dy = recorder.gather_tokens(name_ + ".dy", dy);
  const bool reads_x = reads_input(recorder);
  const bool gathers_x = over_ranks && split_ == Split::kOutputs && reads_x;
  if (gathers_x && !rounded_first) x = recorder.gather_tokens(name_ + ".x", x);
  const Quantized weight = recorder.weights.quantized(name_, Copies::kColumns);
  dy_amax = scales.amax(name_ + ".dy", name_, Operand::kOutputGrad, dy, dy_amax);
  if (gathers_dy_rounded) recorder.max_over_tensor_ranks(name_ + ".dy.amax", dy_amax);
  Quantized q_dy = scales.quantize(name_ + ".dy", name_, Operand::kOutputGrad, dy, dy_amax, recorder.fp8->gradients,
                                   gathers_dy_rounded ? Copies::kRows : Copies::kBoth);
  if (gathers_dy_rounded) q_dy.rows = recorder.gather_tokens(name_ + ".dy", q_dy.rows);
  const Tensor dx = recorder.activation(name_ + ".dx", weight.columns.shape()[0]);
  fp8_product(recorder, name_ + ".dgrad", q_dy, weight.columns, weight.columns_inverse, Tensor(), false, dx);
  if (gathers_dy_rounded) record_columns(recorder, name_ + ".dy", q_dy);
  const Tensor result = split_ == Split::kOutputs ? recorder.scatter_tokens(name_ + ".dx", dx) : dx;
  Quantized q_x = input_;
  if (reads_x) {
    const bool in_rows = gathers_x && rounded_first;
    q_x = scales.quantize(name_ + ".x.again", name_, Operand::kInput, x, input_amax_, DType::kF8E4M3,
                          in_rows ? Copies::kRows : Copies::kColumns, /*again=*/true);
    if (in_rows) {
      q_x.rows = recorder.gather_tokens(name_ + ".x", q_x.rows);
      record_columns(recorder, name_ + ".x", q_x);
    }
  }
  Tensor dy_of_bias;
  if (bias_ && with_bias) {  // See backward(); the weight's gradient reads copies.
    dy_of_bias = split_ == Split::kInputs ? recorder.kept_for_weight_gradient(name_ + ".dy", dy) : dy;
  }
  fp8_weight_gradient(recorder, q_x, q_dy, dy_of_bias);
  return result;
}

void Linear::fp8_weight_gradient(const Recorder& recorder, const Quantized& x, const Quantized& dy,
                                 Tensor dy_of_bias) const {
  recorder.weight_gradient([recorder, linear = *this, x, dy, dy_of_bias] {
    const std::string weight = linear.name_ + ".weight";
    const bool adds = recorder.grads->adds(weight);
    const Tensor dweight = recorder.grad(weight);
    recorder.program.record_kernel(linear.name_ + ".wgrad", product_flops(recorder, dweight), &Kernels::fp8_wgrad,
                                   dy.columns.in(), dy.columns_inverse.in(), x.columns.in(), x.columns_inverse.in(),
                                   adds, dweight.inout());
    if (!dy_of_bias.defined()) return;
    recorder.program.record(linear.name_ + ".bias.grad", &Kernels::column_sums, dy_of_bias.in(),
                            linear.bias_grad(recorder).inout());
  });
}

}  // namespace telar::model
