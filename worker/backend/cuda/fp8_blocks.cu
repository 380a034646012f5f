// FP8 in blocks: a tile is a square, or a run of each of its rows and of each of its columns.
#include <cstring>
#include <type_traits>

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/fp8_tile.cuh"
#include "worker/backend/cuda/greatest.cuh"
#include "worker/backend/cuda/quantize_variant.h"

namespace telar::backend::cuda {
namespace {

constexpr int kWarps = kTileThreads / 32;
static_assert(kTile == kFp8Block && kWarps == 8);

// What both kernels are told. `rows`, `columns` may be null, and so their inverse scales.
struct Copies {
  int64_t height, width;
  unsigned column_tiles, row_tiles;
  uint8_t* rows;
  float* rows_inverse;
  uint8_t* columns;
  float* columns_inverse;
};

// Of a tile that is one block. `consumed` is called when nothing reads `mine` any more.
struct SquareShared {
  uint32_t tile[kTile][kTileWords];
  uint32_t of_warps[kWarps];
};
template <bool kVector, DType kTo, typename T, typename Consumed>
__device__ void quantize_square(const OfThread<T>& mine, TilePlace place, const Copies& to, SquareShared& shared,
                                const Consumed& consumed) {
  Greatest<T> greatest;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    greatest.take(mine.packs[0][r]);
    greatest.take(mine.packs[1][r]);
  }
  const float scale = fp8_scale(__uint_as_float(greatest.of_block(shared.of_warps)), kTo);
  if (threadIdx.x == 0) {
    const float inverse = inverse_of(scale);
    if (to.rows != nullptr) to.rows_inverse[place.row * ((to.column_tiles + 3) / 4 * 4) + place.column] = inverse;
    if (to.columns != nullptr) to.columns_inverse[place.column * ((to.row_tiles + 3) / 4 * 4) + place.row] = inverse;
  }
  quantize_tile<kVector, true, kTo>(mine, scale, to.rows, to.columns == nullptr ? nullptr : &shared.tile);
  consumed();
  if (to.columns == nullptr) return;
  __syncthreads();
  store_columns<kVector>(shared.tile, mine.first_row, mine.first_column, to.height, to.width, to.columns);
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

// Of a tile of which each row and each column is a block. Rows go out while the columns' scales are waited for.
template <typename T>
struct RunsShared {
  uint32_t tile[kTile][kTileWords];
  Magnitudes<T> of_warps[kWarps][kPairs];
  alignas(16) Factors<T> columns_factors[kPairs];
};
template <bool kVector, DType kTo, typename T, typename Consumed>
__device__ void quantize_runs(const OfThread<T>& mine, TilePlace place, const Copies& to, RunsShared<T>& shared,
                              const Consumed& consumed) {
  if (to.columns != nullptr) find_columns_greatest(mine, shared.of_warps[threadIdx.x / 32]);
  if (to.rows != nullptr) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const float scale = row_scale<kTo>(mine, r);
      if (mine.run == 0 && mine.row(r) < to.height) {
        to.rows_inverse[place.column * to.height + mine.row(r)] = inverse_of(scale);
      }
      const Factors<T> both = factors<T>(scale, scale), by[] = {both, both, both, both};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t bytes[2];
        run_bytes<kTo, true>(mine.packs[half][r], by, bytes);
        mine.template store_row<kVector>(half, r, bytes, to.rows);
      }
    }
  }
  if (to.columns == nullptr) return consumed();
  __syncthreads();
  if (threadIdx.x < kPairs) {
    scale_columns<kTo, T>(shared.of_warps, mine.first_column, to.width, shared.columns_factors,
                          to.columns_inverse + place.row * to.width);
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Factors<T>* from = shared.columns_factors + mine.column(half) / 2;
    const Factors<T> by[] = {from[0], from[1], from[2], from[3]};
    uint32_t words[2][kEach];  // Of four columns each.
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      uint32_t bytes[2];
      run_bytes<kTo, true>(mine.packs[half][r], by, bytes);
      words[0][r] = bytes[0];
      words[1][r] = bytes[1];
    }
    put_words(shared.tile, mine.column(half), mine.group, words);
  }
  consumed();
  __syncthreads();
  store_columns<kVector>(shared.tile, mine.first_row, mine.first_column, to.height, to.width, to.columns);
}

template <bool kSquare, typename T>
using TileShared = std::conditional_t<kSquare, SquareShared, RunsShared<T>>;

template <bool kSquare, bool kVector, DType kTo, typename T, typename Consumed>
__device__ void quantize_one(const OfThread<T>& mine, TilePlace place, const Copies& to, TileShared<kSquare, T>& shared,
                             const Consumed& consumed) {
  if constexpr (kSquare) {
    quantize_square<kVector, kTo>(mine, place, to, shared, consumed);
  } else {
    quantize_runs<kVector, kTo>(mine, place, to, shared, consumed);
  }
}

// A block a tile.
template <bool kSquare, bool kVector, DType kTo, typename T>
__global__ void __launch_bounds__(kTileThreads, kVector && sizeof(T) == 2 ? 4 : 2)
    quantize_blocks_kernel(const T* x, Copies to) {
  __shared__ __align__(16) TileShared<kSquare, T> shared;
  const TilePlace place = tile_of(blockIdx.x, to.column_tiles, to.row_tiles);
  OfThread<T> mine(place, to.height, to.width);
  mine.template load<kVector>(x);
  quantize_one<kSquare, kVector, kTo>(mine, place, to, shared, [] {});
}

// Blocks that go over the tiles: the next one's elements come while one is written.
template <bool kSquare, typename T>
struct AheadOfBlocks {
  TileShared<kSquare, T> tile;
  alignas(16) uint4 slots[2 * kEach][kTileThreads];
};
template <bool kSquare, DType kTo, typename T>
__global__ void __launch_bounds__(kTileThreads, 4) quantize_blocks_ahead_kernel(const T* x, Copies to) {
  extern __shared__ __align__(16) unsigned char bytes[];
  AheadOfBlocks<kSquare, T>& shared = *reinterpret_cast<AheadOfBlocks<kSquare, T>*>(bytes);
  TilesAhead<T> ahead(shared.slots, x);
  const unsigned tiles = to.column_tiles * to.row_tiles;
  const auto request = [&](unsigned at) {
    if (at < tiles) ahead.request(OfThread<T>(tile_of(at, to.column_tiles, to.row_tiles), to.height, to.width));
  };
  request(blockIdx.x);
  for (unsigned at = blockIdx.x; at < tiles; at += gridDim.x) {
    const TilePlace place = tile_of(at, to.column_tiles, to.row_tiles);
    OfThread<T> mine(place, to.height, to.width);
    ahead.take(mine);
    quantize_one<kSquare, true, kTo>(mine, place, to, shared.tile, [&] { request(at + gridDim.x); });
    __syncthreads();
  }
}

}  // namespace

absl::Status CudaKernels::quantize_blocks(Stream& stream, In x, bool square, Out rows, Out rows_inverse, Out columns,
                                          Out columns_inverse) {
  absl::Status status = check_quantize_blocks(x, square, rows, rows_inverse, columns, columns_inverse);
  if (!status.ok()) return status;
  const auto column_tiles = static_cast<unsigned>(ceil_div(x.cols(), kTile));
  const auto row_tiles = static_cast<unsigned>(ceil_div(x.rows(), kTile));
  const Copies to{x.rows(),
                  x.cols(),
                  column_tiles,
                  row_tiles,
                  target<uint8_t>(rows),
                  target<float>(rows_inverse),
                  target<uint8_t>(columns),
                  target<float>(columns_inverse)};
  const bool is_e4m3 = (rows.absent() ? columns : rows).dtype == DType::kF8E4M3;
  cudaError_t error = cudaSuccess;
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto squares, auto vector, auto format) {
      if constexpr (vector.value && sizeof(T) == 2) {
        if (quantize_variant() == QuantizeVariant::kAhead) {
          const auto kernel = quantize_blocks_ahead_kernel<squares.value, format.value, T>;
          constexpr size_t kBytes = sizeof(AheadOfBlocks<squares.value, T>);
          unsigned blocks = 0;
          error =
              ahead_blocks(reinterpret_cast<const void*>(kernel), kBytes, int64_t{column_tiles} * row_tiles, &blocks);
          if (error != cudaSuccess) return;
          return kernel<<<blocks, kTileThreads, kBytes, handle_of(stream)>>>(source<T>(x), to);
        }
      }
      quantize_blocks_kernel<squares.value, vector.value, format.value>
          <<<column_tiles * row_tiles, kTileThreads, 0, handle_of(stream)>>>(source<T>(x), to);
    };
    with_bool(square, [&](auto squares) {
      with_bool(fits_vectors(x, rows, columns), [&](auto vector) {
        if (is_e4m3) {
          launch(squares, vector, std::integral_constant<DType, DType::kF8E4M3>());
        } else {
          launch(squares, vector, std::integral_constant<DType, DType::kF8E5M2>());
        }
      });
    });
  });
  return to_status(error == cudaSuccess ? cudaGetLastError() : error, "quantize_blocks");
}

}  // namespace telar::backend::cuda
