#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/norm.cuh"

namespace telar::backend::cuda {

absl::Status CudaKernels::rms_norm(Stream& stream, In residual, In delta, In weight, float epsilon, Out sum, Out y,
                                   Out rstd, Out amax) {
  if (absl::Status s = check_rms_norm(residual, delta, weight, sum, y, rstd, amax); !s.ok()) return s;
  return launch_norm<false>("rms_norm", handle_of(stream), residual, delta, weight, In(), epsilon, sum, y, Out(), rstd,
                            amax);
}

absl::Status CudaKernels::rms_norm_backward(Stream& stream, In dy, In x, In weight, In rstd, InOut dx, InOut dweight) {
  if (absl::Status s = check_rms_norm_backward(dy, x, weight, rstd, dx, dweight); !s.ok()) return s;
  return launch_norm_backward<false>("rms_norm_backward", handle_of(stream), workspaces_, dy, x, weight, In(), rstd, dx,
                                     dweight, InOut());
}

}  // namespace telar::backend::cuda
