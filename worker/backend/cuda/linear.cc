#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_library_ops.h"

// A row-major [rows, cols] tensor is, by columns, the matrix [cols, rows]. So with T tokens, y^T = w^T' x^T and so on:
// the first operand is the one that gives the result's columns.
namespace telar::backend::cuda {
namespace {

// y = x w^T + bias.
Product forward_product(const In& x, const In& weight, const In& bias, const Out& y) {
  return {.m = weight.rows(),
          .n = x.rows(),
          .k = x.cols(),
          .transpose_a = true,
          .a_type = weight.dtype,
          .b_type = x.dtype,
          .d_type = y.dtype,
          .bias_type = bias.dtype,
          .a = weight.data,
          .b = x.data,
          .bias = bias.data,
          .d = y.data};
}

}  // namespace

absl::Status CudaLibraryOps::linear(Stream& stream, In x, In weight, In bias, Out y) {
  if (absl::Status status = check_linear(x, weight, bias, y); !status.ok()) return status;
  return products_->run(handle_of(stream), forward_product(x, weight, bias, y));
}

absl::Status CudaLibraryOps::linear_gelu(Stream& stream, In x, In weight, In bias, Out before, Out after) {
  if (absl::Status status = check_linear_gelu(x, weight, bias, before, after); !status.ok()) return status;
  Product product = forward_product(x, weight, bias, after);
  product.before = before.data;
  return products_->run(handle_of(stream), product);
}

absl::Status CudaLibraryOps::linear_dgrad(Stream& stream, In dy, In weight, Out dx) {
  if (absl::Status status = check_linear_dgrad(dy, weight, dx); !status.ok()) return status;
  return products_->run(handle_of(stream), {.m = weight.cols(),
                                            .n = dy.rows(),
                                            .k = dy.cols(),
                                            .a_type = weight.dtype,
                                            .b_type = dy.dtype,
                                            .d_type = dx.dtype,
                                            .a = weight.data,
                                            .b = dy.data,
                                            .d = dx.data});
}

absl::Status CudaLibraryOps::linear_wgrad(Stream& stream, In dy, In x, bool accumulate, InOut dweight) {
  if (absl::Status status = check_linear_wgrad(dy, x, dweight, InOut()); !status.ok()) return status;
  return products_->run(handle_of(stream), {.m = x.cols(),
                                            .n = dy.cols(),
                                            .k = dy.rows(),
                                            .transpose_b = true,
                                            .a_type = x.dtype,
                                            .b_type = dy.dtype,
                                            .d_type = dweight.dtype,
                                            .a = x.data,
                                            .b = dy.data,
                                            .d = dweight.data,
                                            .accumulate = accumulate});
}

namespace {

// y = a b^T, whose rows are those of a: by columns the product of b, transposed, and a, which is the one form that
// tensor cores take FP8 in.
Product fp8_of(const In& a, const In& a_inverse, const In& b, const In& b_inverse, const View& y) {
  return {.m = b.rows(),
          .n = a.rows(),
          .k = a.cols(),
          .transpose_a = true,
          .a_type = b.dtype,
          .b_type = a.dtype,
          .d_type = y.dtype,
          .a = b.data,
          .b = a.data,
          .d = y.data,
          .a_scale = b_inverse.as<float>(),
          .b_scale = a_inverse.as<float>(),
          .a_scaled = fp8_scaled(b, b_inverse),
          .b_scaled = fp8_scaled(a, a_inverse)};
}

}  // namespace

absl::Status CudaLibraryOps::fp8_product(Stream& stream, In a, In a_inverse, In b, In b_inverse, In bias, bool fast,
                                         Out y) {
  Product product = fp8_of(a, a_inverse, b, b_inverse, y);
  product.bias = bias.data;
  product.bias_type = bias.dtype;
  product.fast = fast && product.a_scaled == Fp8Scaled::kWhole;
  return products_->run(handle_of(stream), product);
}

absl::Status CudaLibraryOps::fp8_wgrad(Stream& stream, In a, In a_inverse, In b, In b_inverse, bool accumulate,
                                       InOut dweight) {
  Product product = fp8_of(a, a_inverse, b, b_inverse, dweight);
  product.accumulate = accumulate;
  return products_->run(handle_of(stream), product);
}

}  // namespace telar::backend::cuda
