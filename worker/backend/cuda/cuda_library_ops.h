// LibraryOps as it is: linear.cc and attention.cc hold the methods, one file an op family as in cpu/.
#pragma once

#include <memory>

#include "worker/backend/cuda/library_ops.h"
#include "worker/backend/cuda/products.h"
#include "worker/backend/cuda/sdpa.h"
#include "worker/backend/cuda/workspace.h"

namespace telar::backend::cuda {

class CudaLibraryOps final : public LibraryOps {
 public:
  absl::Status open(int device, bool deterministic);

  absl::Status linear(Stream&, In x, In weight, In bias, Out y) override;
  absl::Status linear_gelu(Stream&, In x, In weight, In bias, Out before, Out after) override;
  absl::Status linear_dgrad(Stream&, In dy, In weight, Out dx) override;
  absl::Status linear_wgrad(Stream&, In dy, In x, bool accumulate, InOut dweight) override;
  absl::Status fp8_product(Stream&, In a, In a_inverse, In b, In b_inverse, In bias, bool fast, Out y) override;
  absl::Status fp8_wgrad(Stream&, In a, In a_inverse, In b, In b_inverse, bool accumulate, InOut dweight) override;
  absl::Status attention(Stream&, const AttentionDims&, In qkv, In starts, Out o, Out lse) override;
  absl::Status attention_backward(Stream&, const AttentionDims&, In qkv, In starts, In o, In lse, In d_o,
                                  Out dqkv) override;
  size_t workspace_bytes() const override { return workspaces_.bytes(); }

 private:
  Workspaces workspaces_;  // Outlives what uses it.
  std::unique_ptr<Products> products_;
  std::unique_ptr<Sdpa> sdpa_;
};

}  // namespace telar::backend::cuda
