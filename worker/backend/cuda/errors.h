// Errors of the CUDA libraries as statuses, each named by the call that made it.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <string>

#include "absl/status/status.h"

namespace telar::backend::cuda {

// RESOURCE_EXHAUSTED when memory ran out, UNIMPLEMENTED when the library has no kernel for it, else INTERNAL.
absl::Status to_status(cudaError_t error, const std::string& call);
absl::Status to_status(cublasStatus_t error, const std::string& call);
absl::Status to_status(cudnnStatus_t error, const std::string& call);

}  // namespace telar::backend::cuda

// Returns the status of `expression` from the enclosing function unless it is OK.
#define TELAR_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (absl::Status telar_status_ = (expression); !telar_status_.ok()) return telar_status_; \
  } while (false)
