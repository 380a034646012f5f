// One matrix product on the device, and the plain kernel that computes any of them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/backend/dtype.h"
#include "worker/backend/fp8.h"

namespace telar::backend::cuda {

// d[m, n] = op(a)[m, k] op(b)[k, n] + bias[m] (unless null) + d (if accumulate), where op transposes if asked. All
// matrices are stored by columns without gaps, as BLAS has them: a row-major [rows, cols] tensor is one of cols x rows.
// Types are f32, bf16 or f16, but bf16 and f16 do not meet; sums are taken in f32. With `before`, of d's type, that
// gets the result and d its GELU. Where a and b are FP8, only a is transposed, each is multiplied by its scales, which
// are on the device and of what a_scaled, b_scaled say (see fp8.h, of matrices with k columns), and d is bf16 or f32;
// `fast` sums may then have fewer bits.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType a_type = DType::kF32, b_type = DType::kF32, d_type = DType::kF32, bias_type = DType::kF32;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* d = nullptr;
  void* before = nullptr;  // launch_product() does not look at it.
  bool accumulate = false;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  Fp8Scaled a_scaled = Fp8Scaled::kWhole, b_scaled = Fp8Scaled::kWhole;
  bool fast = false;
};

// product.cu: by a tiled kernel on the f32 units, for types and alignments that cuBLASLt has no algorithm for. Not FP8.
cudaError_t launch_product(cudaStream_t stream, const Product& product);

}  // namespace telar::backend::cuda
