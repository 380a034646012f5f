// FP8 in blocks: a tile is a square, or a run of each of its rows and of each of its columns.
#include <cstring>
#include <type_traits>

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/fp8_tile.cuh"
#include "worker/backend/cuda/greatest.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kWarps = kTileThreads / 32;
static_assert(kTile == kFp8Block && kWarps == 8);

// `rows`, `columns` may be null, and so their inverse scales.
template <bool kVector, DType kTo, typename T>
__global__ void __launch_bounds__(kTileThreads, kVector && sizeof(T) == 2 ? 4 : 2)
    quantize_squares_kernel(const T* x, int64_t height, int64_t width, unsigned column_tiles, unsigned row_tiles,
                            uint8_t* rows, float* rows_inverse, uint8_t* columns, float* columns_inverse) {
  __shared__ __align__(16) uint32_t tile[kTile][kTileWords];
  __shared__ uint32_t of_warps[kWarps];
  const TilePlace place = tile_of(blockIdx.x, column_tiles, row_tiles);
  OfThread<T> mine(place, height, width);
  mine.template load<kVector>(x);
  Greatest<T> greatest;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    greatest.take(mine.packs[0][r]);
    greatest.take(mine.packs[1][r]);
  }
  const float scale = fp8_scale(__uint_as_float(greatest.of_block(of_warps)), kTo);
  if (threadIdx.x == 0) {
    const float inverse = inverse_of(scale);
    if (rows != nullptr) rows_inverse[place.row * ((column_tiles + 3) / 4 * 4) + place.column] = inverse;
    if (columns != nullptr) columns_inverse[place.column * ((row_tiles + 3) / 4 * 4) + place.row] = inverse;
  }
  quantize_tile<kVector, true, kTo>(mine, scale, rows, columns == nullptr ? nullptr : &tile);
  if (columns == nullptr) return;
  __syncthreads();
  store_columns<kVector>(tile, mine.first_row, mine.first_column, height, width, columns);
}

// The magnitudes of two elements, ordered as whole numbers are; of 16 bits each in one word.
template <typename T>
using Magnitudes = std::conditional_t<sizeof(T) == 2, uint32_t, uint2>;

template <typename T>
__device__ Magnitudes<T> magnitudes(const T* two) {
  Magnitudes<T> both;
  memcpy(&both, two, sizeof(both));
  if constexpr (sizeof(T) == 2) {
    return both & 0x7fff7fffu;
  } else {
    return make_uint2(both.x & 0x7fffffffu, both.y & 0x7fffffffu);
  }
}
__device__ inline uint32_t greater(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }
__device__ inline uint2 greater(uint2 a, uint2 b) { return make_uint2(max(a.x, b.x), max(a.y, b.y)); }
__device__ inline uint32_t of_lane(uint32_t mine, int bit) { return __shfl_xor_sync(0xffffffffu, mine, bit); }
__device__ inline uint2 of_lane(uint2 mine, int bit) { return make_uint2(of_lane(mine.x, bit), of_lane(mine.y, bit)); }
template <typename T>
__device__ float2 as_floats(Magnitudes<T> both) {
  T two[2];
  memcpy(two, &both, sizeof(two));
  return make_float2(to_float(two[0]), to_float(two[1]));
}

constexpr int kPairs = kTile / 2;  // Of columns.

// Of a warp's sixteen rows, by pairs of columns.
template <typename T>
__device__ void find_columns_greatest(const OfThread<T>& mine, Magnitudes<T> (&of_warp)[kPairs]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      Magnitudes<T> most = magnitudes(&mine.packs[half][0].values[i]);
#pragma unroll
      for (int r = 1; r < kEach; ++r) most = greater(most, magnitudes(&mine.packs[half][r].values[i]));
      most = greater(most, of_lane(most, 8));
      most = greater(most, of_lane(most, 16));
      if (threadIdx.x % 32 < 8) of_warp[(mine.column(half) + i) / 2] = most;
    }
  }
}

// Row r of this thread's, which eight lanes share.
template <DType kTo, typename T>
__device__ float row_scale(const OfThread<T>& mine, int r) {
  Magnitudes<T> most = magnitudes(&mine.packs[0][r].values[0]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = half == 0 ? 2 : 0; i < kRun; i += 2) most = greater(most, magnitudes(&mine.packs[half][r].values[i]));
  }
#pragma unroll
  for (int bit = 1; bit < 8; bit *= 2) most = greater(most, of_lane(most, bit));
  const float2 two = as_floats<T>(most);  // One may be NaN, so as whole numbers:
  return fp8_scale(__uint_as_float(max(__float_as_uint(two.x), __float_as_uint(two.y))), kTo);
}

// By kPairs threads: what warps have found becomes factors and inverse scales.
template <DType kTo, typename T>
__device__ void scale_columns(const Magnitudes<T> (&of_warps)[kWarps][kPairs], int64_t first_column, int64_t width,
                              Factors<T> (&columns_factors)[kPairs], float* inverses) {
  Magnitudes<T> most = of_warps[0][threadIdx.x];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) most = greater(most, of_warps[w][threadIdx.x]);
  const float2 two = as_floats<T>(most);
  const float first = fp8_scale(two.x, kTo), second = fp8_scale(two.y, kTo);
  columns_factors[threadIdx.x] = factors<T>(first, second);
  const int64_t column = first_column + 2 * threadIdx.x;
  if (column < width) inverses[column] = inverse_of(first);
  if (column + 1 < width) inverses[column + 1] = inverse_of(second);
}

// As above. Rows go out while the columns' scales are waited for.
template <bool kVector, DType kTo, typename T>
__global__ void __launch_bounds__(kTileThreads, kVector && sizeof(T) == 2 ? 4 : 2)
    quantize_runs_kernel(const T* x, int64_t height, int64_t width, unsigned column_tiles, unsigned row_tiles,
                         uint8_t* rows, float* rows_inverse, uint8_t* columns, float* columns_inverse) {
  __shared__ __align__(16) uint32_t tile[kTile][kTileWords];
  __shared__ Magnitudes<T> of_warps[kWarps][kPairs];
  __shared__ __align__(16) Factors<T> columns_factors[kPairs];
  const TilePlace place = tile_of(blockIdx.x, column_tiles, row_tiles);
  OfThread<T> mine(place, height, width);
  mine.template load<kVector>(x);
  if (columns != nullptr) find_columns_greatest(mine, of_warps[threadIdx.x / 32]);
  if (rows != nullptr) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const float scale = row_scale<kTo>(mine, r);
      if (mine.run == 0 && mine.row(r) < height) rows_inverse[place.column * height + mine.row(r)] = inverse_of(scale);
      const Factors<T> both = factors<T>(scale, scale), by[] = {both, both, both, both};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t bytes[2];
        run_bytes<kTo, true>(mine.packs[half][r], by, bytes);
        mine.template store_row<kVector>(half, r, bytes, rows);
      }
    }
  }
  if (columns == nullptr) return;
  __syncthreads();
  if (threadIdx.x < kPairs) {
    scale_columns<kTo, T>(of_warps, mine.first_column, width, columns_factors, columns_inverse + place.row * width);
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Factors<T>* from = columns_factors + mine.column(half) / 2;
    const Factors<T> by[] = {from[0], from[1], from[2], from[3]};
    uint32_t words[2][kEach];  // Of four columns each.
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      uint32_t bytes[2];
      run_bytes<kTo, true>(mine.packs[half][r], by, bytes);
      words[0][r] = bytes[0];
      words[1][r] = bytes[1];
    }
    put_words(tile, mine.column(half), mine.group, words);
  }
  __syncthreads();
  store_columns<kVector>(tile, mine.first_row, mine.first_column, height, width, columns);
}

}  // namespace

absl::Status CudaKernels::quantize_blocks(Stream& stream, In x, bool square, Out rows, Out rows_inverse, Out columns,
                                          Out columns_inverse) {
  absl::Status status = check_quantize_blocks(x, square, rows, rows_inverse, columns, columns_inverse);
  if (!status.ok()) return status;
  const int64_t height = x.rows(), width = x.cols();
  const auto column_tiles = static_cast<unsigned>(ceil_div(width, kTile));
  const auto row_tiles = static_cast<unsigned>(ceil_div(height, kTile));
  const bool is_e4m3 = (rows.absent() ? columns : rows).dtype == DType::kF8E4M3;
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_bool(fits_vectors(x, rows, columns), [&](auto vector) {
      const auto launch = [&](auto kernel) {
        kernel<<<column_tiles * row_tiles, kTileThreads, 0, handle_of(stream)>>>(
            source<T>(x), height, width, column_tiles, row_tiles, target<uint8_t>(rows), target<float>(rows_inverse),
            target<uint8_t>(columns), target<float>(columns_inverse));
      };
      const auto launch_to = [&](auto to) {
        if (square) {
          launch(quantize_squares_kernel<vector.value, to.value, T>);
        } else {
          launch(quantize_runs_kernel<vector.value, to.value, T>);
        }
      };
      if (is_e4m3) {
        launch_to(std::integral_constant<DType, DType::kF8E4M3>());
      } else {
        launch_to(std::integral_constant<DType, DType::kF8E5M2>());
      }
    });
  });
  return to_status(cudaGetLastError(), "quantize_blocks");
}

}  // namespace telar::backend::cuda
