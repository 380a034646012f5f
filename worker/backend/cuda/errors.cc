#include "worker/backend/cuda/errors.h"

#include "absl/strings/str_cat.h"

namespace telar::backend::cuda {

absl::Status to_status(cudaError_t error, const std::string& call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const std::string message = absl::StrCat(call, ": CUDA error ", static_cast<int>(error), " (",
                                           cudaGetErrorName(error), ": ", cudaGetErrorString(error), ")");
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

absl::Status to_status(cublasStatus_t error, const std::string& call) {
  if (error == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": ", cublasLtGetStatusName(error));
  if (error == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(message);
  return error == CUBLAS_STATUS_NOT_SUPPORTED ? absl::UnimplementedError(message) : absl::InternalError(message);
}

absl::Status to_status(cudnnStatus_t error, const std::string& call) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  char detail[512] = "";
  cudnnGetLastErrorString(detail, sizeof(detail));
  const std::string message = absl::StrCat(call, ": ", cudnnGetErrorString(error), ": ", detail);
  // The thousands of a code are its category: 2xxx bad parameter, 3xxx not supported, 4xxx internal, 5xxx execution.
  return error / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ? absl::UnimplementedError(message)
                                                           : absl::InternalError(message);
}

}  // namespace telar::backend::cuda
