// Launchers of attention_kernels.cu: causal attention on the f32 units, for f32 and for what cuDNN refuses. All sums in
// f32 and a fixed order. No checks in here but of head_dim; tensors as in kernels.h, `starts` null where absent.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/backend/kernels.h"

namespace telar::backend::cuda {

inline constexpr int64_t kMaxHeadDim = 512;  // Beyond: cudaErrorInvalidValue.

cudaError_t launch_attention(cudaStream_t stream, const AttentionDims& dims, DType dtype, const void* qkv,
                             const int32_t* starts, void* o, float* lse);
// dsum: scratch of [batch, heads, sequence].
cudaError_t launch_attention_backward(cudaStream_t stream, const AttentionDims& dims, DType dtype, const void* qkv,
                                      const int32_t* starts, const void* o, const float* lse, const void* d_o,
                                      float* dsum, void* dqkv);

// bias: bf16 or f16 [batch, sequence, pitch], 0 where a row's token sees a column's for all that their documents say,
// else `foreign`. Columns beyond the sequence are written, too.
cudaError_t launch_document_bias(cudaStream_t stream, const AttentionDims& dims, int64_t pitch, DType dtype,
                                 const int32_t* starts, float foreign, void* bias);

}  // namespace telar::backend::cuda
