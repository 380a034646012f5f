// Errors of the CUDA libraries as statuses, each named by the call that made it.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <string>

#include "absl/status/status.h"
#include "worker/backend/cuda/cuda.h"

namespace telar::backend::cuda {

// As for the runtime's errors in cuda.h; UNIMPLEMENTED: the library has no kernel for what was asked.
absl::Status to_status(cublasStatus_t error, const std::string& call);
absl::Status to_status(cudnnStatus_t error, const std::string& call);

}  // namespace telar::backend::cuda

// Returns the status of `expression` from the enclosing function unless it is OK.
#define TELAR_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (absl::Status telar_status_ = (expression); !telar_status_.ok()) return telar_status_; \
  } while (false)
