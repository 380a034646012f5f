#include "absl/strings/str_cat.h"
#include "worker/backend/check.h"
#include "worker/backend/cuda/attention_kernels.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_library_ops.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

absl::Status check_head_dim(const char* op, const AttentionDims& dims) {
  if (dims.head_dim <= kMaxHeadDim) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": dims.head_dim: got ", dims.head_dim, ", wanted at most ", kMaxHeadDim));
}

const int32_t* starts_of(const In& starts) { return starts.absent() ? nullptr : starts.as<int32_t>(); }

bool is_aligned(const View& view) { return reinterpret_cast<uintptr_t>(view.data) % 16 == 0; }

}  // namespace

absl::Status CudaLibraryOps::attention(Stream& stream, const AttentionDims& dims, In qkv, In starts, Out o, Out lse) {
  TELAR_RETURN_IF_ERROR(check_attention(dims, qkv, starts, o, lse));
  TELAR_RETURN_IF_ERROR(check_head_dim("attention", dims));
  const cudaStream_t handle = handle_of(stream);
  if (Sdpa::takes(dims, qkv.dtype) && is_aligned(qkv) && is_aligned(o) && is_aligned(lse)) {
    const absl::Status status = sdpa_->forward(handle, dims, qkv, starts_of(starts), o, lse);
    if (!absl::IsUnimplemented(status)) return status;
  }
  return to_status(launch_attention(handle, dims, qkv.dtype, qkv.data, starts_of(starts), o.data, lse.as<float>()),
                   "attention");
}

absl::Status CudaLibraryOps::attention_backward(Stream& stream, const AttentionDims& dims, In qkv, In starts, In o,
                                                In lse, In d_o, Out dqkv) {
  TELAR_RETURN_IF_ERROR(check_attention_backward(dims, qkv, starts, o, lse, d_o, dqkv));
  TELAR_RETURN_IF_ERROR(check_head_dim("attention_backward", dims));
  const cudaStream_t handle = handle_of(stream);
  if (Sdpa::takes(dims, qkv.dtype) && is_aligned(qkv) && is_aligned(o) && is_aligned(lse) && is_aligned(d_o) &&
      is_aligned(dqkv)) {
    const absl::Status status = sdpa_->backward(handle, dims, qkv, starts_of(starts), o, lse, d_o, dqkv);
    if (!absl::IsUnimplemented(status)) return status;
  }
  const size_t dsum_bytes = static_cast<size_t>(lse.elements()) * sizeof(float);
  const absl::StatusOr<std::byte*> dsum = workspaces_.get("attention", handle, dsum_bytes);
  if (!dsum.ok()) return dsum.status();
  return to_status(launch_attention_backward(handle, dims, qkv.dtype, qkv.data, starts_of(starts), o.data,
                                             lse.as<float>(), d_o.data, reinterpret_cast<float*>(*dsum), dqkv.data),
                   "attention_backward");
}

}  // namespace telar::backend::cuda
