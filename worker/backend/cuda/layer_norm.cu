#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/norm.cuh"

namespace telar::backend::cuda {

absl::Status CudaKernels::layer_norm(Stream& stream, In residual, In delta, In weight, In bias, float epsilon, Out sum,
                                     Out y, Out mean, Out rstd, Out amax) {
  absl::Status status = check_layer_norm(residual, delta, weight, bias, sum, y, mean, rstd, amax);
  if (!status.ok()) return status;
  return launch_norm<true>("layer_norm", handle_of(stream), residual, delta, weight, bias, epsilon, sum, y, mean, rstd,
                           amax);
}

absl::Status CudaKernels::layer_norm_backward(Stream& stream, In dy, In x, In weight, In mean, In rstd, InOut dx,
                                              InOut dweight, InOut dbias) {
  if (absl::Status s = check_layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias); !s.ok()) return s;
  return launch_norm_backward<true>("layer_norm_backward", handle_of(stream), workspaces_, dy, x, weight, mean, rstd,
                                    dx, dweight, dbias);
}

}  // namespace telar::backend::cuda
