#include "worker/backend/fp8.h"

#include <algorithm>

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/fp8_tile.cuh"
#include "worker/backend/cuda/greatest.cuh"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;

// Grid-stride over packs, kLoads of them under way at a time. `known` may be null.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads) amax_kernel(const T* x, int64_t elements, const float* known, float* amax) {
  constexpr int kN = kPackSize<T>, kLoads = 4;
  if (known != nullptr && *known > 0) {  // The same for all threads.
    if (blockIdx.x == 0 && threadIdx.x == 0) *amax = *known;
    return;
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kN;
  Greatest<T> greatest;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN; at < elements;
       at += kLoads * stride) {
    Pack<T, kN> packs[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) packs[i] = load_pack<kVector, kN>(x, at + i * stride, elements);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) greatest.take(packs[i]);
  }
  greatest.publish(amax);
}

// `rows` and `columns` may be null, and `seen` is where it is not kSees.
template <bool kVector, bool kSees, DType kTo, typename T>
__global__ void __launch_bounds__(kTileThreads, kVector && sizeof(T) == 2 ? 4 : 2)
    quantize_kernel(const T* x, const float* amax, int64_t height, int64_t width, unsigned column_tiles,
                    unsigned row_tiles, uint8_t* rows, uint8_t* columns, float* inverse_scale, float* seen) {
  __shared__ __align__(16) uint32_t tile[kTile][kTileWords];
  const float greatest_of_all = *amax;  // Asked for first: nothing may wait for it alone.
  OfThread<T> mine(tile_of(blockIdx.x, column_tiles, row_tiles), height, width);
  mine.template load<kVector>(x);
  const float scale = fp8_scale(greatest_of_all, kTo);
  if (blockIdx.x == 0 && threadIdx.x == 0) *inverse_scale = inverse_of(scale);
  Greatest<T> greatest;
  if constexpr (kSees) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      greatest.take(mine.packs[0][r]);
      greatest.take(mine.packs[1][r]);
    }
  }
  quantize_tile<kVector, false, kTo>(mine, scale, rows, columns == nullptr ? nullptr : &tile);
  if (columns != nullptr) {
    __syncthreads();
    store_columns<kVector>(tile, mine.first_row, mine.first_column, height, width, columns);
  }
  if constexpr (kSees) greatest.publish(seen, 0x7f800000u);
}

// The tile's bytes come as quantize_kernel makes them.
template <bool kVector>
__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(const uint8_t* x, int64_t height, int64_t width, unsigned column_tiles, unsigned row_tiles,
                     uint8_t* y) {
  __shared__ __align__(16) uint32_t tile[kTile][kTileWords];
  const int run = threadIdx.x % 8, group = threadIdx.x / 8;
  const TilePlace place = tile_of(blockIdx.x, column_tiles, row_tiles);
  const int64_t first_column = place.column * kTile, first_row = place.row * kTile;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = half * (kTile / 2) + run * kRun;
    uint32_t words[2][kEach];
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int64_t row = first_row + group * kEach + r, at = first_column + column;
      uint2 eight = make_uint2(0, 0);
      if constexpr (kVector) {
        if (row < height && at < width) eight = *reinterpret_cast<const uint2*>(x + row * width + at);
      } else {
        for (int i = 0; i < kRun; ++i) {
          const uint32_t byte = row < height && at + i < width ? x[row * width + at + i] : 0;
          (i < 4 ? eight.x : eight.y) |= byte << (8 * (i % 4));
        }
      }
      words[0][r] = eight.x;
      words[1][r] = eight.y;
    }
    put_words(tile, column, group, words);
  }
  __syncthreads();
  store_columns<kVector>(tile, first_row, first_column, height, width, y);
}

__global__ void inverse_scales_kernel(const float* amax, int64_t count, float* inverses) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < 4 * count) inverses[i] = i % 4 == 0 ? 1.0f / fp8_scale(amax[i / 4], DType::kF8E4M3) : 0.0f;
}

// --- Histories: a block has a row --------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    history_amax_kernel(const float* history, int64_t looked_at, int64_t length, float margin, float* amax) {
  __shared__ uint32_t of_warps[kThreads / 32];
  const float* row = history + blockIdx.x * length;
  uint32_t greatest = 0;  // What is not negative is ordered as its bits are.
  for (int64_t i = threadIdx.x; i < looked_at; i += kThreads) greatest = max(greatest, __float_as_uint(row[i]));
  greatest = __reduce_max_sync(0xffffffffu, greatest);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = greatest;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  greatest = __reduce_max_sync(0xffffffffu, threadIdx.x < kThreads / 32 ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x == 0) amax[blockIdx.x] = margin * __uint_as_float(greatest);
}

// From the end on, kThreads entries at a time: all are read before any is written.
__global__ void __launch_bounds__(kThreads) push_history_kernel(const float* amax, int64_t length, float* history) {
  float* row = history + blockIdx.x * length;
  const float newest = amax[blockIdx.x];
  if (!isfinite(newest)) return;
  for (int64_t end = length; end > 0; end -= kThreads) {
    const int64_t i = end - kThreads + threadIdx.x;
    const float value = i > 0 ? row[i - 1] : newest;
    __syncthreads();
    if (i >= 0) row[i] = value;
    __syncthreads();
  }
}

}  // namespace

absl::Status CudaKernels::amax(Stream& stream, In x, In known, Out amax) {
  if (absl::Status status = check_amax(x, known, amax); !status.ok()) return status;
  const cudaStream_t on = handle_of(stream);
  if (absl::Status status = to_status(clear_greatest(on, amax), "amax"); !status.ok()) return status;
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int64_t kBlocks = 132 * 8, kOfBlock = 4 * kThreads * kPackSize<T>;
    const T* from = source<T>(x);
    // Where something may be known it mostly is, and then blocks are there for nothing.
    const int64_t most = known.absent() ? kBlocks : kBlocks / 8;
    const auto blocks = static_cast<unsigned>(std::min(most, ceil_div(x.elements(), kOfBlock)));
    with_bool(x.elements() % kPackSize<T> == 0 && fits_packs<kPackSize<T>>(from), [&](auto vector) {
      amax_kernel<vector.value>
          <<<blocks, kThreads, 0, on>>>(from, x.elements(), source<float>(known), target<float>(amax));
    });
  });
  return to_status(cudaGetLastError(), "amax");
}

absl::Status CudaKernels::quantize(Stream& stream, In x, In amax, Out rows, Out columns, Out inverse_scale,
                                   InOut seen) {
  if (absl::Status status = check_quantize(x, amax, rows, columns, inverse_scale, seen); !status.ok()) return status;
  const int64_t height = x.rows(), width = x.cols(), column_tiles = ceil_div(width, kTile);
  const int64_t row_tiles = ceil_div(height, kTile);
  const auto blocks = static_cast<unsigned>(column_tiles * row_tiles);
  const bool is_e4m3 = (rows.absent() ? columns : rows).dtype == DType::kF8E4M3;
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_bool(fits_vectors(x, rows, columns), [&](auto vector) {
      with_bool(!seen.absent(), [&](auto sees) {
        const auto launch = [&](auto kernel) {
          kernel<<<blocks, kTileThreads, 0, handle_of(stream)>>>(
              source<T>(x), source<float>(amax), height, width, static_cast<unsigned>(column_tiles),
              static_cast<unsigned>(row_tiles), target<uint8_t>(rows), target<uint8_t>(columns),
              target<float>(inverse_scale), target<float>(seen));
        };
        if (is_e4m3) {
          launch(quantize_kernel<vector.value, sees.value, DType::kF8E4M3, T>);
        } else {
          launch(quantize_kernel<vector.value, sees.value, DType::kF8E5M2, T>);
        }
      });
    });
  });
  return to_status(cudaGetLastError(), "quantize");
}

absl::Status CudaKernels::transpose(Stream& stream, In x, Out y) {
  if (absl::Status status = check_transpose(x, y); !status.ok()) return status;
  const auto column_tiles = static_cast<unsigned>(ceil_div(x.cols(), kTile));
  const auto row_tiles = static_cast<unsigned>(ceil_div(x.rows(), kTile));
  const bool fits = x.cols() % kRun == 0 && x.rows() % 16 == 0 && is_aligned(x, kRun) && is_aligned(y, 16);
  with_bool(fits, [&](auto vector) {
    transpose_kernel<vector.value><<<column_tiles * row_tiles, kTileThreads, 0, handle_of(stream)>>>(
        source<uint8_t>(x), x.rows(), x.cols(), column_tiles, row_tiles, target<uint8_t>(y));
  });
  return to_status(cudaGetLastError(), "transpose");
}

absl::Status CudaKernels::inverse_scales(Stream& stream, In amax, Out inverses) {
  if (absl::Status status = check_inverse_scales(amax, inverses); !status.ok()) return status;
  const auto blocks = static_cast<unsigned>(ceil_div(inverses.elements(), kThreads));
  inverse_scales_kernel<<<blocks, kThreads, 0, handle_of(stream)>>>(source<float>(amax), amax.elements(),
                                                                    target<float>(inverses));
  return to_status(cudaGetLastError(), "inverse_scales");
}

absl::Status CudaKernels::history_amax(Stream& stream, In history, bool newest, float margin, Out amax) {
  if (absl::Status status = check_history_amax(history, amax); !status.ok()) return status;
  const auto rows = static_cast<unsigned>(history.rows());
  history_amax_kernel<<<rows, kThreads, 0, handle_of(stream)>>>(source<float>(history), newest ? 1 : history.cols(),
                                                                history.cols(), margin, target<float>(amax));
  return to_status(cudaGetLastError(), "history_amax");
}

absl::Status CudaKernels::push_history(Stream& stream, In amax, InOut history) {
  if (absl::Status status = check_push_history(amax, history); !status.ok()) return status;
  push_history_kernel<<<static_cast<unsigned>(history.rows()), kThreads, 0, handle_of(stream)>>>(
      source<float>(amax), history.cols(), target<float>(history));
  return to_status(cudaGetLastError(), "push_history");
}

}  // namespace telar::backend::cuda
