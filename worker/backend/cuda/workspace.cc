#include "worker/backend/cuda/workspace.h"

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda.h"

namespace telar::backend::cuda {

Workspaces::~Workspaces() {
  for (const auto& [stream, block] : blocks_) cudaFree(block);
}

absl::StatusOr<std::byte*> Workspaces::get(const char* op, cudaStream_t stream, size_t bytes) {
  if (bytes > kBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(op, ": workspace: needs ", bytes, " bytes, a stream has ", kBytes));
  }
  std::lock_guard lock(mutex_);
  std::byte*& block = blocks_[stream];
  if (block != nullptr) return block;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  absl::Status status = to_status(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  if (status.ok() && capture != cudaStreamCaptureStatusNone) {
    status = absl::FailedPreconditionError(
        absl::StrCat(op, ": workspace: the stream is being captured; call once before the capture"));
  }
  void* data = nullptr;
  if (status.ok()) status = to_status(cudaMalloc(&data, kBytes), absl::StrCat(op, ": workspace: cudaMalloc"));
  if (!status.ok()) return status;
  return block = static_cast<std::byte*>(data);
}

}  // namespace telar::backend::cuda
