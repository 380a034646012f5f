#include "worker/backend/cuda/scratch.h"

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {

Scratch::~Scratch() {
  for (const auto& [key, block] : blocks_) cudaFree(block.data);
  for (std::byte* data : replaced_) cudaFree(data);
}

absl::StatusOr<std::byte*> Scratch::get(cudaStream_t stream, Use use, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Block& block = blocks_[{stream, use}];
  if (block.data != nullptr && bytes <= block.bytes) return block.data;
  if (is_capturing(stream)) {
    return absl::FailedPreconditionError(absl::StrCat("device ", device_, ": a stream under capture needs ", bytes,
                                                      " bytes of scratch and has ", block.bytes));
  }
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::ResourceExhaustedError(
        absl::StrCat("device ", device_, ": ", bytes, " bytes of scratch asked, ", free, " of ", total, " free"));
  }
  TELAR_RETURN_IF_ERROR(to_status(error, "cudaMalloc"));
  if (block.data != nullptr) replaced_.push_back(block.data);
  block = {static_cast<std::byte*>(data), bytes};
  return block.data;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

}  // namespace telar::backend::cuda
