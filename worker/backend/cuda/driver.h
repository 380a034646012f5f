// Functions of the driver's library, which the module does not link, so that it loads without one.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda.h"

namespace telar::backend::cuda {

// `function` as of that version of CUDA (12000: 12.0). FAILED_PRECONDITION: this driver has none.
template <typename Function>
absl::Status find_in_driver(const char* symbol, unsigned version, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(symbol, &address, version, cudaEnableDefault, &found);
  if (absl::Status status = to_status(error, symbol); !status.ok()) return status;
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("this driver has no ", symbol));
  }
  function = reinterpret_cast<Function>(address);
  return absl::OkStatus();
}

inline absl::Status driver_status(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": CUDA error ", static_cast<int>(result), " of the driver"));
}

}  // namespace telar::backend::cuda
