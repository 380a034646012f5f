// What CudaKernels passes on to the vendor libraries.
#include <utility>

#include "worker/backend/check.h"
#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"

namespace telar::backend::cuda {

absl::Status CudaKernels::linear(Stream& stream, In x, In weight, In bias, Out y) {
  if (absl::Status status = check_linear(x, weight, bias, y); !status.ok()) return status;
  return library_->linear(stream, x, weight, bias, y);
}

absl::Status CudaKernels::linear_gelu(Stream& stream, In x, In weight, In bias, Out before, Out after) {
  if (absl::Status status = check_linear_gelu(x, weight, bias, before, after); !status.ok()) return status;
  return library_->linear_gelu(stream, x, weight, bias, before, after);
}

absl::Status CudaKernels::linear_dgrad(Stream& stream, In dy, In weight, Out dx) {
  if (absl::Status status = check_linear_dgrad(dy, weight, dx); !status.ok()) return status;
  return library_->linear_dgrad(stream, dy, weight, dx);
}

absl::Status CudaKernels::linear_wgrad(Stream& stream, In dy, In x, bool accumulate, InOut dweight, InOut dbias) {
  if (absl::Status status = check_linear_wgrad(dy, x, dweight, dbias); !status.ok()) return status;
  if (!dbias.absent()) {
    if (absl::Status status = column_sums(stream, dy, dbias); !status.ok()) return status;
  }
  return library_->linear_wgrad(stream, dy, x, accumulate, dweight);
}

absl::Status CudaKernels::column_sums(Stream& stream, In x, InOut sums) {
  if (absl::Status status = check_column_sums(x, sums); !status.ok()) return status;
  const ColumnSums how = column_sums_of(x);
  const auto partials = workspaces_.get("column_sums", handle_of(stream), how.partial_bytes());
  if (!partials.ok()) return partials.status();
  return to_status(add_column_sums(handle_of(stream), how, x, reinterpret_cast<float*>(*partials), sums),
                   "column_sums");
}

absl::Status CudaKernels::fp8_product(Stream& stream, In a, In a_inverse, In b, In b_inverse, In bias, bool fast,
                                      Out y) {
  if (absl::Status status = check_fp8_product(a, a_inverse, b, b_inverse, bias, y); !status.ok()) return status;
  return library_->fp8_product(stream, a, a_inverse, b, b_inverse, bias, fast, y);
}

absl::Status CudaKernels::fp8_wgrad(Stream& stream, In a, In a_inverse, In b, In b_inverse, bool accumulate,
                                    InOut dweight) {
  if (absl::Status status = check_fp8_wgrad(a, a_inverse, b, b_inverse, dweight); !status.ok()) return status;
  return library_->fp8_wgrad(stream, a, a_inverse, b, b_inverse, accumulate, dweight);
}

absl::Status CudaKernels::attention(Stream& stream, const AttentionDims& dims, In qkv, In starts, Out o, Out lse) {
  if (absl::Status status = check_attention(dims, qkv, starts, o, lse); !status.ok()) return status;
  return library_->attention(stream, dims, qkv, starts, o, lse);
}

absl::Status CudaKernels::attention_backward(Stream& stream, const AttentionDims& dims, In qkv, In starts, In o, In lse,
                                             In d_o, Out dqkv) {
  if (absl::Status status = check_attention_backward(dims, qkv, starts, o, lse, d_o, dqkv); !status.ok()) return status;
  return library_->attention_backward(stream, dims, qkv, starts, o, lse, d_o, dqkv);
}

absl::StatusOr<std::unique_ptr<CudaKernels>> create_kernels(int device, bool deterministic) {
  auto library = LibraryOps::create(device, deterministic);
  if (!library.ok()) return library.status();
  return std::make_unique<CudaKernels>(*std::move(library));
}

}  // namespace telar::backend::cuda
