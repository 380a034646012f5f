// A tile that a block turns into FP8, as it is and transposed.
//
// A block has a tile of kTile x kTile, a thread kEach rows of it and, of those, two runs of kRun columns: so eight
// threads in a row read and write the whole of 64 columns. The copy as it is goes out from registers. For the
// transposed one, four rows' bytes of a column make a word of shared memory, and a column's words its 128 bytes.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/fp8.h"

namespace telar::backend::cuda {

inline constexpr int kTileThreads = 256;
inline constexpr int kTile = 128, kRun = 8, kEach = 4;
inline constexpr int kTileWords = kTile / kEach;  // Of a column.
static_assert(kTileThreads / 8 * kEach == kTile && 2 * 8 * kRun == kTile);

// What two elements that lie beside each other are multiplied by: powers of two. In bf16 they are exact, and so is what
// comes of them, but where it ends as 0 or as the largest number of FP8 in any case.
template <typename T>
using Factors = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat162, float2>;

template <typename T>
__device__ Factors<T> factors(float first, float second) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __floats2bfloat162_rn(first, second);
  } else {
    return make_float2(first, second);
  }
}

// kSafe: where there is an infinity, the factor is NaN. Otherwise it is made NaN by a product with 0.
template <bool kSafe, typename T>
__device__ float2 scaled(const T* two, Factors<T> by) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    __nv_bfloat162 values;
    memcpy(&values, two, sizeof(values));
    const __nv_bfloat162 products =
        kSafe ? __hmul2(values, by) : __hfma2(values, by, __hmul2(values, factors<T>(0.0f, 0.0f)));
    uint32_t bits;
    memcpy(&bits, &products, sizeof(bits));
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  } else {
    const float first = to_float(two[0]), second = to_float(two[1]);
    return kSafe ? make_float2(first * by.x, second * by.y)
                 : make_float2(fmaf(first, by.x, first * 0.0f), fmaf(second, by.y, second * 0.0f));
  }
}

// Of a power of two that fp8_scale() made, or NaN.
__device__ inline float inverse_of(float scale) {
  const uint32_t bits = __float_as_uint(scale);
  return bits >= 0x7f800000u ? scale : __uint_as_float(0x7f000000u - bits);
}

template <DType kTo, bool kSafe, typename T>
__device__ void run_bytes(const Pack<T, kRun>& pack, const Factors<T> (&by)[kRun / 2], uint32_t (&bytes)[2]) {
  constexpr auto kInterpretation = kTo == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const float2 low = scaled<kSafe>(&pack.values[4 * w], by[2 * w]);
    const float2 high = scaled<kSafe>(&pack.values[4 * w + 2], by[2 * w + 1]);
    bytes[w] = __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, kInterpretation) |
               static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, kInterpretation)) << 16;
  }
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
__device__ inline void put_words(uint32_t (&tile)[kTile][kTileWords], int column, int group,
                                 uint32_t (&words)[2][kEach]) {
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    transpose_bytes(words[w]);
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[column + 4 * w + j][word_of(column, group)] = words[w][j];
  }
}

// The tile at (first_row, first_column) of [height, width] into the transposed copy.
template <bool kVector>
__device__ void store_columns(const uint32_t (&tile)[kTile][kTileWords], int64_t first_row, int64_t first_column,
                              int64_t height, int64_t width, uint8_t* columns) {
#pragma unroll
  for (int i = 0; i < kTile * kTile / 16 / kTileThreads; ++i) {
    const int piece = (i * kTileThreads + threadIdx.x) % 8, column = (i * kTileThreads + threadIdx.x) / 8;
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

// What a thread has of its block's tile, and where.
template <typename T>
struct OfThread {
  int run = threadIdx.x % 8, group = threadIdx.x / 8;
  int64_t first_column, first_row, height, width;
  Pack<T, kRun> packs[2][kEach];

  __device__ OfThread(TilePlace place, int64_t height, int64_t width)
      : first_column(place.column * kTile), first_row(place.row * kTile), height(height), width(width) {}

  __device__ int column(int half) const { return half * (kTile / 2) + run * kRun; }
  __device__ int64_t row(int r) const { return first_row + group * kEach + r; }

  template <bool kVector>
  __device__ void load(const T* x) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        packs[half][r] =
            load_pack<kVector, kRun>(x + row(r) * width, first_column + column(half), row(r) < height ? width : 0);
      }
    }
  }

  template <bool kVector>
  __device__ void store_row(int half, int r, const uint32_t (&bytes)[2], uint8_t* rows) const {
    const int64_t at = first_column + column(half), left = width - at;
    if (row(r) < height && left > 0) store_bytes<kVector>(rows + row(r) * width + at, left, bytes);
  }
};

// Into both copies by one scale: into `rows` and into `tile`, unless they are null.
template <bool kVector, bool kSafe, DType kTo, typename T>
__device__ void quantize_tile(const OfThread<T>& mine, float scale, uint8_t* rows,
                              uint32_t (*tile)[kTile][kTileWords]) {
  const Factors<T> both = factors<T>(scale, scale), by[] = {both, both, both, both};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[2][kEach];  // Of four columns each.
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      uint32_t bytes[2];
      run_bytes<kTo, kSafe>(mine.packs[half][r], by, bytes);
      words[0][r] = bytes[0];
      words[1][r] = bytes[1];
      if (rows != nullptr) mine.template store_row<kVector>(half, r, bytes, rows);
    }
    if (tile != nullptr) put_words(*tile, mine.column(half), mine.group, words);
  }
}

inline bool is_aligned(const View& view, uintptr_t bytes) {
  return view.absent() || reinterpret_cast<uintptr_t>(view.data) % bytes == 0;
}

inline bool fits_vectors(const View& x, const View& rows, const View& columns) {
  return x.cols() % kRun == 0 && (columns.absent() || x.rows() % 16 == 0) && is_aligned(rows, kRun) &&
         is_aligned(columns, 16) && is_aligned(x, 16);
}

}  // namespace telar::backend::cuda
