#include "worker/backend/fp8.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
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

// --- Quantizing ------------------------------------------------------------------------------------------------
// A block has a tile of kTile x kTile, a thread kEach rows of it and, of those, two runs of kRun columns: so eight
// threads in a row read and write the whole of 64 columns. The copy as it is goes out from registers. For the
// transposed one, four rows' bytes of a column make a word of shared memory, and a column's words its 128 bytes.

constexpr int kTile = 128, kRun = 8, kEach = 4;
constexpr int kWords = kTile / kEach;  // Of a column.
static_assert(kThreads / 8 * kEach == kTile && 2 * 8 * kRun == kTile);

// An infinity times 0 is NaN; whatever else is not changed by it.
__device__ inline float scaled(float value, float scale) { return fmaf(value, scale, value * 0.0f); }

// Of values that are scaled.
__device__ inline uint32_t four_bytes(const float (&values)[kRun], int first, __nv_fp8_interpretation_t to) {
  const float2 low = {values[first], values[first + 1]}, high = {values[first + 2], values[first + 3]};
  return __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, to) |
         static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, to)) << 16;
}

// Byte j of row i becomes byte i of row j.
__device__ inline void transpose_bytes(uint32_t (&rows)[kEach]) {
  const uint32_t even_01 = __byte_perm(rows[0], rows[1], 0x5140), odd_01 = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t even_23 = __byte_perm(rows[2], rows[3], 0x5140), odd_23 = __byte_perm(rows[2], rows[3], 0x7362);
  rows[0] = __byte_perm(even_01, even_23, 0x5410);
  rows[1] = __byte_perm(even_01, even_23, 0x7632);
  rows[2] = __byte_perm(odd_01, odd_23, 0x5410);
  rows[3] = __byte_perm(odd_01, odd_23, 0x7632);
}

// Which word of a column the rows `group` * kEach ... are in: so placed that the threads of a warp meet in no bank.
__device__ inline int word_of(int column, int group) { return group ^ (column / kRun % 8 * 4); }

// The first `left` bytes of `words`, or all if there are more.
template <bool kVector, int kCount>
__device__ void store_bytes(uint8_t* to, int64_t left, const uint32_t (&words)[kCount]) {
  if constexpr (kVector && kCount == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else if constexpr (kVector) {
    static_assert(kCount == 4);
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 4 * kCount; ++i) {
      if (i < left) to[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
    }
  }
}

// The bytes of kEach rows and kRun columns, as words of four columns, into the tile.
__device__ inline void put_words(uint32_t (&tile)[kTile][kWords], int column, int group, uint32_t (&words)[2][kEach]) {
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    transpose_bytes(words[w]);
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[column + 4 * w + j][word_of(column, group)] = words[w][j];
  }
}

// The tile at (first_row, first_column) of [height, width] into the transposed copy.
template <bool kVector>
__device__ void store_columns(const uint32_t (&tile)[kTile][kWords], int64_t first_row, int64_t first_column,
                              int64_t height, int64_t width, uint8_t* columns) {
#pragma unroll
  for (int i = 0; i < kTile * kTile / 16 / kThreads; ++i) {
    const int piece = (i * kThreads + threadIdx.x) % 8, column = (i * kThreads + threadIdx.x) / 8;
    const int64_t row = first_row + 16 * piece, left = height - row;
    if (first_column + column >= width || left <= 0) continue;
    const uint4 sixteen = *reinterpret_cast<const uint4*>(&tile[column][word_of(column, 4 * piece)]);
    const uint32_t words[4] = {sixteen.x, sixteen.y, sixteen.z, sixteen.w};
    store_bytes<kVector>(columns + (first_column + column) * height + row, left, words);
  }
}

// Which tile a block has: bands of kBand columns of tiles, each row by row. So blocks that run beside each other read
// long pieces of rows and write long pieces of columns.
struct TilePlace {
  int64_t column, row;
};
__device__ inline TilePlace tile_of(unsigned block, unsigned column_tiles, unsigned row_tiles) {
  constexpr unsigned kBand = 8;
  const unsigned first = block / (kBand * row_tiles) * kBand, width = min(kBand, column_tiles - first);
  const unsigned of_band = block % (kBand * row_tiles);
  return {first + of_band % width, of_band / width};
}

// `rows`, `columns` and `seen` may be null.
template <bool kVector, DType kTo, typename T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 4 : 2)
    quantize_kernel(const T* x, const float* amax, int64_t height, int64_t width, unsigned column_tiles,
                    unsigned row_tiles, uint8_t* rows, uint8_t* columns, float* inverse_scale, float* seen) {
  constexpr auto kInterpretation = kTo == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
  __shared__ __align__(16) uint32_t tile[kTile][kWords];
  const int run = threadIdx.x % 8, group = threadIdx.x / 8;
  const TilePlace place = tile_of(blockIdx.x, column_tiles, row_tiles);
  const int64_t first_column = place.column * kTile, first_row = place.row * kTile;
  Pack<T, kRun> packs[2][kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const int64_t row = first_row + group * kEach + r;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = first_column + half * (kTile / 2) + run * kRun;
      packs[half][r] = load_pack<kVector, kRun>(x + row * width, at, row < height ? width : 0);
    }
  }
  if (seen != nullptr) {
    Greatest<T> greatest;
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      greatest.take(packs[0][r]);
      greatest.take(packs[1][r]);
    }
    greatest.publish(seen, 0x7f800000u);
  }
  const float scale = fp8_scale(*amax, kTo);
  if (blockIdx.x == 0 && threadIdx.x == 0) *inverse_scale = 1.0f / scale;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = half * (kTile / 2) + run * kRun;
    uint32_t words[2][kEach];  // Of four columns each.
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      float values[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) values[i] = scaled(packs[half][r].get(i), scale);
      const uint32_t bytes[2] = {four_bytes(values, 0, kInterpretation), four_bytes(values, 4, kInterpretation)};
      words[0][r] = bytes[0];
      words[1][r] = bytes[1];
      const int64_t row = first_row + group * kEach + r, left = width - first_column - column;
      if (rows != nullptr && row < height && left > 0) {
        store_bytes<kVector>(rows + row * width + first_column + column, left, bytes);
      }
    }
    if (columns != nullptr) put_words(tile, column, group, words);
  }
  if (columns == nullptr) return;
  __syncthreads();
  store_columns<kVector>(tile, first_row, first_column, height, width, columns);
}

// The tile's bytes come as quantize_kernel makes them.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) transpose_kernel(const uint8_t* x, int64_t height, int64_t width,
                                                             unsigned column_tiles, unsigned row_tiles, uint8_t* y) {
  __shared__ __align__(16) uint32_t tile[kTile][kWords];
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

// --- In blocks -------------------------------------------------------------------------------------------------
// A tile is a square, or a run of each of its rows and of each of its columns.

__device__ inline uint32_t magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }

// The greatest of the lanes whose numbers differ in the bits of `mask` only.
template <int kMask>
__device__ uint32_t greatest_of_lanes(uint32_t mine) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) {
    if (kMask & bit) mine = max(mine, __shfl_xor_sync(0xffffffffu, mine, bit));
  }
  return mine;
}

// `rows`, `columns` may be null, and so their inverse scales.
template <bool kVector, bool kSquare, DType kTo, typename T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 3 : 2)
    quantize_blocks_kernel(const T* x, int64_t height, int64_t width, unsigned column_tiles, unsigned row_tiles,
                           uint8_t* rows, float* rows_inverse, uint8_t* columns, float* columns_inverse) {
  constexpr auto kInterpretation = kTo == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
  static_assert(kTile == kFp8Block && kThreads / 32 == 8);
  __shared__ __align__(16) uint32_t tile[kTile][kWords];
  __shared__ uint32_t greatest[kThreads / 32][kTile];  // By warp: of columns, or in the first entry of all.
  __shared__ float column_scales[kTile];
  const int run = threadIdx.x % 8, group = threadIdx.x / 8, warp = threadIdx.x / 32;
  const TilePlace place = tile_of(blockIdx.x, column_tiles, row_tiles);
  const int64_t first_column = place.column * kTile, first_row = place.row * kTile;
  Pack<T, kRun> packs[2][kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const int64_t row = first_row + group * kEach + r;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = first_column + half * (kTile / 2) + run * kRun;
      packs[half][r] = load_pack<kVector, kRun>(x + row * width, at, row < height ? width : 0);
    }
  }
  float row_scales[kEach];
  uint32_t of_thread = 0;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    uint32_t of_row = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      of_row = max(of_row, max(magnitude(packs[0][r].get(i)), magnitude(packs[1][r].get(i))));
    }
    of_thread = max(of_thread, of_row);
    if constexpr (!kSquare) row_scales[r] = fp8_scale(__uint_as_float(greatest_of_lanes<7>(of_row)), kTo);
  }
  if constexpr (kSquare) {
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, of_thread);
    if (threadIdx.x % 32 == 0) greatest[warp][0] = of_warp;
    __syncthreads();
    uint32_t of_block = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) of_block = max(of_block, greatest[w][0]);
#pragma unroll
    for (int r = 0; r < kEach; ++r) row_scales[r] = fp8_scale(__uint_as_float(of_block), kTo);
    if (threadIdx.x == 0) {
      const float inverse = 1.0f / row_scales[0];
      if (rows != nullptr) rows_inverse[place.row * ((column_tiles + 3) / 4 * 4) + place.column] = inverse;
      if (columns != nullptr) columns_inverse[place.column * ((row_tiles + 3) / 4 * 4) + place.row] = inverse;
    }
  } else if (columns != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        uint32_t of_column = 0;
#pragma unroll
        for (int r = 0; r < kEach; ++r) of_column = max(of_column, magnitude(packs[half][r].get(i)));
        of_column = greatest_of_lanes<24>(of_column);
        if (threadIdx.x % 32 < 8) greatest[warp][half * (kTile / 2) + run * kRun + i] = of_column;
      }
    }
    __syncthreads();
    if (threadIdx.x < kTile) {
      uint32_t of_column = 0;
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) of_column = max(of_column, greatest[w][threadIdx.x]);
      const float scale = fp8_scale(__uint_as_float(of_column), kTo);
      column_scales[threadIdx.x] = scale;
      const int64_t column = first_column + threadIdx.x;
      if (column < width) columns_inverse[place.row * width + column] = 1.0f / scale;
    }
    __syncthreads();
  }
  if (!kSquare && rows != nullptr && run == 0) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int64_t row = first_row + group * kEach + r;
      if (row < height) rows_inverse[place.column * height + row] = 1.0f / row_scales[r];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = half * (kTile / 2) + run * kRun;
    uint32_t words[2][kEach];  // Of four columns each.
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      float values[kRun];
      if (kSquare || rows != nullptr) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) values[i] = scaled(packs[half][r].get(i), row_scales[r]);
        const uint32_t bytes[2] = {four_bytes(values, 0, kInterpretation), four_bytes(values, 4, kInterpretation)};
        words[0][r] = bytes[0];
        words[1][r] = bytes[1];
        const int64_t row = first_row + group * kEach + r, left = width - first_column - column;
        if (rows != nullptr && row < height && left > 0) {
          store_bytes<kVector>(rows + row * width + first_column + column, left, bytes);
        }
      }
      if (!kSquare && columns != nullptr) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) values[i] = scaled(packs[half][r].get(i), column_scales[column + i]);
        words[0][r] = four_bytes(values, 0, kInterpretation);
        words[1][r] = four_bytes(values, 4, kInterpretation);
      }
    }
    if (columns != nullptr) put_words(tile, column, group, words);
  }
  if (columns == nullptr) return;
  __syncthreads();
  store_columns<kVector>(tile, first_row, first_column, height, width, columns);
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

bool is_aligned(const View& view, uintptr_t bytes) {
  return view.absent() || reinterpret_cast<uintptr_t>(view.data) % bytes == 0;
}

bool fits_vectors(const View& x, const View& rows, const View& columns) {
  return x.cols() % kRun == 0 && (columns.absent() || x.rows() % 16 == 0) && is_aligned(rows, kRun) &&
         is_aligned(columns, 16) && is_aligned(x, 16);
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
      const auto launch = [&](auto kernel) {
        kernel<<<blocks, kThreads, 0, handle_of(stream)>>>(
            source<T>(x), source<float>(amax), height, width, static_cast<unsigned>(column_tiles),
            static_cast<unsigned>(row_tiles), target<uint8_t>(rows), target<uint8_t>(columns),
            target<float>(inverse_scale), target<float>(seen));
      };
      if (is_e4m3) {
        launch(quantize_kernel<vector.value, DType::kF8E4M3, T>);
      } else {
        launch(quantize_kernel<vector.value, DType::kF8E5M2, T>);
      }
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
    transpose_kernel<vector.value><<<column_tiles * row_tiles, kThreads, 0, handle_of(stream)>>>(
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
      with_bool(square, [&](auto is_square) {
        const auto launch = [&](auto kernel) {
          kernel<<<column_tiles * row_tiles, kThreads, 0, handle_of(stream)>>>(
              source<T>(x), height, width, column_tiles, row_tiles, target<uint8_t>(rows), target<float>(rows_inverse),
              target<uint8_t>(columns), target<float>(columns_inverse));
        };
        if (is_e4m3) {
          launch(quantize_blocks_kernel<vector.value, is_square.value, DType::kF8E4M3, T>);
        } else {
          launch(quantize_blocks_kernel<vector.value, is_square.value, DType::kF8E5M2, T>);
        }
      });
    });
  });
  return to_status(cudaGetLastError(), "quantize_blocks");
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
