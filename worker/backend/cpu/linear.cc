#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/row_sums.h"

namespace telar::backend::cpu {

namespace {

Operand row_major(const In& matrix) { return {matrix.data, matrix.dtype, matrix.cols(), 1}; }
Operand transposed(const In& matrix) { return {matrix.data, matrix.dtype, 1, matrix.cols()}; }

}  // namespace

absl::Status CpuKernels::linear(Stream&, In x, In weight, In bias, Out y) {
  if (absl::Status status = check_linear(x, weight, bias, y); !status.ok()) return status;
  return matmul_.run({.m = x.rows(),
                      .n = weight.rows(),
                      .k = x.cols(),
                      .a = row_major(x),
                      .b = transposed(weight),
                      .bias = bias.data,
                      .bias_dtype = bias.dtype,
                      .c = y.data,
                      .c_dtype = y.dtype});
}

absl::Status CpuKernels::linear_gelu(Stream& stream, In x, In weight, In bias, Out before, Out after) {
  if (absl::Status status = check_linear_gelu(x, weight, bias, before, after); !status.ok()) return status;
  if (absl::Status status = linear(stream, x, weight, bias, before); !status.ok()) return status;
  return gelu(stream, In(before), after, Out());
}

absl::Status CpuKernels::linear_dgrad(Stream&, In dy, In weight, Out dx) {
  if (absl::Status status = check_linear_dgrad(dy, weight, dx); !status.ok()) return status;
  return matmul_.run({.m = dy.rows(),
                      .n = weight.cols(),
                      .k = dy.cols(),
                      .a = row_major(dy),
                      .b = row_major(weight),
                      .c = dx.data,
                      .c_dtype = dx.dtype});
}

absl::Status CpuKernels::linear_wgrad(Stream&, In dy, In x, bool accumulate, InOut dweight, InOut dbias) {
  if (absl::Status status = check_linear_wgrad(dy, x, dweight, dbias); !status.ok()) return status;
  if (!dbias.absent()) add_column_sums(dy, dbias);
  return matmul_.run({.m = dy.cols(),
                      .n = x.cols(),
                      .k = dy.rows(),
                      .a = transposed(dy),
                      .b = row_major(x),
                      .c = dweight.data,
                      .accumulate = accumulate});
}

absl::Status CpuKernels::column_sums(Stream&, In x, InOut sums) {
  if (absl::Status status = check_column_sums(x, sums); !status.ok()) return status;
  add_column_sums(x, sums);
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
