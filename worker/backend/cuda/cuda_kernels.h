// The class behind create_kernels(). One .cu an op family defines its methods: layer_norm.cu, cross_entropy.cu, ...
//
// Ids and targets live on the device, so nobody looks at them before the launch: an id outside [0, V) counts as a row
// of zeros that gets no gradient, a target of `vocab` or more as none; but cross_entropy_loss_parts() knows no `vocab`.
// The data loader checks them.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/library_ops.h"
#include "worker/backend/cuda/workspace.h"
#include "worker/backend/kernels.h"

namespace telar::backend::cuda {

// Launches on the stream's CUDA stream. The current device must be the stream's.
class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(std::unique_ptr<LibraryOps> library) : library_(std::move(library)) {}

  absl::Status fill(Stream&, float value, Out x) override;
  absl::Status copy(Stream&, In x, Out y) override;
  absl::Status cast(Stream&, In x, Out y) override;
  absl::Status add(Stream&, In a, In b, Out y) override;
  absl::Status random_normal(Stream&, RandomKey key, float stddev, Out x) override;

  absl::Status embedding(Stream&, In ids, const VocabSlice& slice, In table, In positions, In starts, int64_t sequence,
                         Out y) override;
  absl::Status embedding_backward(Stream&, In ids, const VocabSlice& slice, In dy, In starts, int64_t sequence,
                                  InOut dtable, InOut dpositions) override;

  absl::Status linear(Stream&, In x, In weight, In bias, Out y) override;
  absl::Status linear_gelu(Stream&, In x, In weight, In bias, Out before, Out after) override;
  absl::Status linear_dgrad(Stream&, In dy, In weight, Out dx) override;
  absl::Status linear_wgrad(Stream&, In dy, In x, bool accumulate, InOut dweight, InOut dbias) override;
  absl::Status column_sums(Stream&, In x, InOut sums) override;

  absl::Status amax(Stream&, In x, In known, Out amax) override;
  absl::Status quantize(Stream&, In x, In amax, Out rows, Out columns, Out inverse_scale, InOut seen) override;
  absl::Status transpose(Stream&, In x, Out y) override;
  absl::Status inverse_scales(Stream&, In amax, Out inverses) override;
  absl::Status quantize_blocks(Stream&, In x, bool square, Out rows, Out rows_inverse, Out columns,
                               Out columns_inverse) override;
  absl::Status history_amax(Stream&, In history, bool newest, float margin, Out amax) override;
  absl::Status push_history(Stream&, In amax, InOut history) override;
  // UNIMPLEMENTED on GPUs without FP8. In blocks: on GPUs other than of compute capability 9.0, and where an extent is
  // no multiple of 128.
  absl::Status fp8_product(Stream&, In a, In a_inverse, In b, In b_inverse, In bias, bool fast, Out y) override;
  absl::Status fp8_wgrad(Stream&, In a, In a_inverse, In b, In b_inverse, bool accumulate, InOut dweight) override;

  // Rows of at most 16384 columns, in both norms; UNIMPLEMENTED above.
  absl::Status layer_norm(Stream&, In residual, In delta, In weight, In bias, float epsilon, Out sum, Out y, Out mean,
                          Out rstd, Out amax) override;
  absl::Status layer_norm_backward(Stream&, In dy, In x, In weight, In mean, In rstd, InOut dx, InOut dweight,
                                   InOut dbias) override;
  absl::Status rms_norm(Stream&, In residual, In delta, In weight, float epsilon, Out sum, Out y, Out rstd,
                        Out amax) override;
  absl::Status rms_norm_backward(Stream&, In dy, In x, In weight, In rstd, InOut dx, InOut dweight) override;

  absl::Status gelu(Stream&, In x, Out y, Out amax) override;
  absl::Status gelu_backward(Stream&, In dy, In x, Out dx, InOut dbias, Out amax) override;
  absl::Status swiglu(Stream&, In gate_up, Out y, Out amax) override;
  absl::Status swiglu_backward(Stream&, In dy, In gate_up, Out dgate_up, Out amax) override;

  absl::Status rope(Stream&, const AttentionDims& dims, In table, In starts, InOut qkv) override;
  absl::Status rope_backward(Stream&, const AttentionDims& dims, In table, In starts, InOut dqkv) override;
  absl::Status attention(Stream&, const AttentionDims& dims, In qkv, In starts, Out o, Out lse) override;
  absl::Status attention_backward(Stream&, const AttentionDims& dims, In qkv, In starts, In o, In lse, In d_o,
                                  Out dqkv) override;

  absl::Status count_valid(Stream&, In targets, InOut count) override;
  absl::Status cross_entropy(Stream&, In targets, In count, In loss_scale, int64_t vocab, InOut logits,
                             InOut loss) override;
  absl::Status cross_entropy_loss(Stream&, In targets, In count, int64_t vocab, In logits, InOut loss) override;
  absl::Status softmax_parts(Stream&, In targets, const VocabSlice& slice, In logits, Out parts) override;
  absl::Status cross_entropy_parts(Stream&, In targets, In count, In loss_scale, const VocabSlice& slice, In parts,
                                   InOut logits, InOut loss) override;
  absl::Status cross_entropy_loss_parts(Stream&, In targets, In count, In parts, InOut loss) override;

  absl::Status sum_squares(Stream&, In x, InOut sum) override;
  absl::Status clip_scale(Stream&, In sum_squares, In loss_scale, float max_norm, Out norm, Out scale) override;
  absl::Status advance_step(Stream&, const StepParams& params, In scale, InOut state, InOut step) override;
  absl::Status adamw(Stream&, const AdamWParams& params, In grad, In scale, In step, InOut master, InOut exp_avg,
                     InOut exp_avg_sq, Out weight) override;

  size_t workspace_bytes() const { return workspaces_.bytes() + library_->workspace_bytes(); }

 private:
  const std::unique_ptr<LibraryOps> library_;
  Workspaces workspaces_;
};

}  // namespace telar::backend::cuda
