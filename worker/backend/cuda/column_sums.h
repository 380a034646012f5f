// Sums down the columns of a matrix: of the gradients of a bias, and of partial sums that blocks have left.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/backend/view.h"

namespace telar::backend::cuda {

// out[c] += sum over k < count of partials[k * pitch + c], for c < width, in a fixed order. Likewise more[c] of the
// `width` columns after those, unless it is null.
cudaError_t add_partials(cudaStream_t stream, const float* partials, int64_t count, int64_t width, int64_t pitch,
                         float* out, float* more = nullptr);

// How the rows of a matrix are shared among blocks. Depends on its shape and type only.
struct ColumnSums {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t column_blocks = 0;
  int64_t row_blocks = 0;
  int64_t rows_per_block = 0;
  size_t partial_bytes() const { return static_cast<size_t>(row_blocks * width) * sizeof(float); }
};
ColumnSums column_sums_of(const In& x);
// out: f32 [x.cols()] accumulates the sums of x's columns. `partials` has sums.partial_bytes().
cudaError_t add_column_sums(cudaStream_t stream, const ColumnSums& sums, const In& x, float* partials,
                            const InOut& out);

}  // namespace telar::backend::cuda
