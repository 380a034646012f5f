// Products by cuBLASLt and attention by cuDNN; the part of Kernels that vendor libraries compute.
#pragma once
#include <memory>
#include "absl/status/statusor.h"
#include "worker/backend/kernels.h"
namespace telar::backend::cuda {
class LibraryOps {
 public:
  static absl::StatusOr<std::unique_ptr<LibraryOps>> create(int device, bool deterministic);
  virtual ~LibraryOps() = default;
  virtual absl::Status linear(Stream&, In x, In weight, In bias, Out y) = 0;
  virtual absl::Status linear_gelu(Stream&, In x, In weight, In bias, Out before, Out after) = 0;
  virtual absl::Status linear_dgrad(Stream&, In dy, In weight, Out dx) = 0;
  // dbias is not its business: CudaKernels computes it.
  virtual absl::Status linear_wgrad(Stream&, In dy, In x, bool accumulate, InOut dweight) = 0;
  virtual absl::Status fp8_product(Stream&, In a, In a_inverse, In b, In b_inverse, In bias, bool fast, Out y) = 0;
  virtual absl::Status fp8_wgrad(Stream&, In a, In a_inverse, In b, In b_inverse, bool accumulate, InOut dweight) = 0;
  virtual absl::Status attention(Stream&, const AttentionDims&, In qkv, In starts, Out o, Out lse) = 0;
  virtual absl::Status attention_backward(Stream&, const AttentionDims&, In qkv, In starts, In o, In lse, In d_o,
                                          Out dqkv) = 0;
  virtual size_t workspace_bytes() const = 0;
};
}  // namespace telar::backend::cuda
