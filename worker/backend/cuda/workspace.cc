#include "worker/backend/cuda/workspace.h"

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {

Workspaces::~Workspaces() {
  for (const auto& [stream, block] : blocks_) cudaFree(block.data);
  for (const Block& block : replaced_) cudaFree(block.data);
}

absl::StatusOr<std::byte*> Workspaces::get(const char* op, cudaStream_t stream, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Block& block = blocks_[stream];
  const bool capturing = is_capturing(stream);
  if (bytes > block.bytes) {
    if (capturing) {
      return absl::FailedPreconditionError(absl::StrCat(op, ": workspace: a stream under capture needs ", bytes,
                                                        " bytes and has ", block.bytes, "; call once before"));
    }
    TELAR_RETURN_IF_ERROR(grow(op, stream, bytes, block));
  }
  block.captured = block.captured || capturing;
  return block.data;
}

absl::Status Workspaces::grow(const char* op, cudaStream_t stream, size_t bytes, Block& block) {
  if (block.captured) {
    replaced_.push_back(block);
  } else if (block.data != nullptr) {
    TELAR_RETURN_IF_ERROR(to_status(cudaStreamSynchronize(stream), absl::StrCat(op, ": workspace")));
    TELAR_RETURN_IF_ERROR(to_status(cudaFree(block.data), absl::StrCat(op, ": workspace: cudaFree")));
  }
  block = Block();
  bytes = (bytes + kUnit - 1) / kUnit * kUnit;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::ResourceExhaustedError(
        absl::StrCat(op, ": workspace: ", bytes, " bytes asked, ", free, " of ", total, " free"));
  }
  TELAR_RETURN_IF_ERROR(to_status(error, absl::StrCat(op, ": workspace: cudaMalloc")));
  block = {static_cast<std::byte*>(data), bytes, false};
  return absl::OkStatus();
}

size_t Workspaces::bytes() const {
  const std::lock_guard lock(mutex_);
  size_t total = 0;
  for (const auto& [stream, block] : blocks_) total += block.bytes;
  for (const Block& block : replaced_) total += block.bytes;
  return total;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

}  // namespace telar::backend::cuda
