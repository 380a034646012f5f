#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/row_sums.h"

namespace telar::backend::cpu {

namespace {

Operand row_major(const In& matrix) { return {matrix.data, matrix.dtype, matrix.cols(), 1}; }
Operand transposed(const In& matrix) { return {matrix.data, matrix.dtype, 1, matrix.cols()}; }

template <typename T>
TELAR_SIMD void accumulate_row(const T* row, float* to, int64_t n) {
  for (int64_t c = 0; c < n; ++c) to[c] += load(row[c]);
}

void accumulate_columns(const In& dy, const InOut& dbias) {
  const int64_t width = dy.cols();
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    sum_rows(
        dy.rows(), width,
        [&](int64_t first, int64_t last, float* partial) {
          for (int64_t t = first; t < last; ++t) accumulate_row(dy.as<T>() + t * width, partial, width);
        },
        [&](int64_t column, int64_t n, const float* partial) {
          accumulate_row(partial, dbias.as<float>() + column, n);
        });
  });
}

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
  if (!dbias.absent()) accumulate_columns(dy, dbias);
  return matmul_.run({.m = dy.cols(),
                      .n = x.cols(),
                      .k = dy.rows(),
                      .a = transposed(dy),
                      .b = row_major(x),
                      .c = dweight.data,
                      .accumulate = accumulate});
}

}  // namespace telar::backend::cpu
