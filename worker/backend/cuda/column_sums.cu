#include "worker/backend/cuda/column_sums.h"

#include <algorithm>

#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroupColumns = 8;  // 32 bytes, a sector of memory.
constexpr int kGroups = 128;      // Of threads of a block that adds partials up.

// Block x: kGroupColumns columns. Group g of as many threads adds partials g, g + kGroups, ...; then the first group
// adds the groups' sums.
__global__ void __launch_bounds__(kGroups* kGroupColumns)
    add_partials_kernel(const float* partials, int64_t count, int64_t width, int64_t pitch, float* out, float* more) {
  constexpr int kGroupWarps = kGroups * kGroupColumns / 32;
  __shared__ float sums[kGroupWarps][kGroupColumns];
  const int of_block = threadIdx.x % kGroupColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kGroupColumns + of_block;
  const bool is_column = column < (more == nullptr ? width : 2 * width);
  float sum = 0.0f;
  if (is_column) {
#pragma unroll 4
    for (int64_t k = threadIdx.x / kGroupColumns; k < count; k += kGroups) sum += partials[k * pitch + column];
  }
#pragma unroll
  for (int mask = kGroupColumns; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);  // Of the warp's groups.
  if (threadIdx.x % 32 < kGroupColumns) sums[threadIdx.x / 32][of_block] = sum;
  __syncthreads();
  if (threadIdx.x >= kGroupColumns || !is_column) return;
  for (int warp = 1; warp < kGroupWarps; ++warp) sum += sums[warp][of_block];
  (column < width ? out[column] : more[column - width]) += sum;
}

// Block (x, y): 32 packs of columns, rows_per_block rows. Warp w adds rows w, w + kWarps, ... of them.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const T* x, int64_t rows, int64_t width, int64_t rows_per_block, float* partials) {
  constexpr int kN = kPackSize<T>, kColumns = 32 * kN;
  __shared__ float sums[kWarps][kColumns];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t at = first_column + lane * kN;
  const int64_t first = blockIdx.y * rows_per_block;
  const int64_t last = min(rows, first + rows_per_block);
  float sum[kN] = {};
#pragma unroll 4
  for (int64_t row = first + warp; row < last; row += kWarps) {
    const auto pack = load_pack<kVector, kN>(x + row * width, at, width);
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[i] += pack.get(i);
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) sums[warp][lane * kN + i] = sum[i];
  __syncthreads();
  for (int c = threadIdx.x; c < kColumns && first_column + c < width; c += kThreads) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += sums[w][c];
    partials[blockIdx.y * width + first_column + c] = total;
  }
}

}  // namespace

cudaError_t add_partials(cudaStream_t stream, const float* partials, int64_t count, int64_t width, int64_t pitch,
                         float* out, float* more) {
  const unsigned blocks = static_cast<unsigned>(ceil_div(more == nullptr ? width : 2 * width, kGroupColumns));
  add_partials_kernel<<<blocks, kGroups * kGroupColumns, 0, stream>>>(partials, count, width, pitch, out, more);
  return cudaGetLastError();
}

ColumnSums column_sums_of(const In& x) {
  constexpr int64_t kBlocks = 132 * 4;  // Four a multiprocessor of an H200.
  constexpr int64_t kLeastRows = 32;
  ColumnSums sums{.rows = x.rows(), .width = x.cols()};
  sums.column_blocks = ceil_div(sums.width, 32 * 16 / static_cast<int64_t>(size_of(x.dtype)));
  const int64_t wanted = std::max<int64_t>(1, kBlocks / sums.column_blocks);
  sums.rows_per_block = std::max(kLeastRows, ceil_div(sums.rows, wanted));
  sums.row_blocks = ceil_div(sums.rows, sums.rows_per_block);
  return sums;
}

cudaError_t add_column_sums(cudaStream_t stream, const ColumnSums& sums, const In& x, float* partials,
                            const InOut& out) {
  const dim3 grid(static_cast<unsigned>(sums.column_blocks), static_cast<unsigned>(sums.row_blocks));
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T* from = source<T>(x);
    with_bool(sums.width % kN == 0 && fits_packs<kN>(from), [&](auto vector) {
      column_sums_kernel<vector.value>
          <<<grid, kThreads, 0, stream>>>(from, sums.rows, sums.width, sums.rows_per_block, partials);
    });
  });
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return add_partials(stream, partials, sums.row_blocks, sums.width, sums.width, target<float>(out));
}

}  // namespace telar::backend::cuda
