#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "worker/backend/cuda/product.h"

namespace telar::backend::cuda {
namespace {

constexpr int kTile = 64;   // Rows and columns of d that a block computes.
constexpr int kDepth = 16;  // Terms of each sum that are in shared memory at a time.
constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // Rows, and columns, of d a thread.
constexpr int kSide = kTile / kPerThread;

template <typename T>
__device__ T from_float(float value) {
  return T(value);  // Nearest even for bf16 and f16.
}

// tile[p][i] = x[i, first_p + p] for the kTile i from first_i on, 0 outside. Element (i, p) lies at i * depth + p if
// `by_depth`, else at p * extent + i; neighbouring threads read neighbouring elements either way.
template <typename T>
__device__ void load(float (*tile)[kTile + 1], const T* x, int64_t extent, int64_t depth, bool by_depth,
                     int64_t first_i, int64_t first_p) {
  for (int at = threadIdx.x; at < kTile * kDepth; at += kThreads) {
    const int i = by_depth ? at / kDepth : at % kTile, p = by_depth ? at % kDepth : at / kTile;
    const int64_t row = first_i + i, term = first_p + p;
    const bool inside = row < extent && term < depth;
    tile[p][i] = inside ? static_cast<float>(x[by_depth ? row * depth + term : term * extent + row]) : 0.0f;
  }
}

__device__ inline float bias_at(const Product& product, int64_t i) {
  if (product.bias_type == DType::kBF16) {
    return static_cast<float>(static_cast<const __nv_bfloat16*>(product.bias)[i]);
  }
  if (product.bias_type == DType::kF16) return static_cast<float>(static_cast<const __half*>(product.bias)[i]);
  return static_cast<const float*>(product.bias)[i];
}

template <typename A, typename B, typename D>
__global__ void __launch_bounds__(kThreads) multiply(Product product, unsigned row_blocks) {
  __shared__ float a_tile[kDepth][kTile + 1], b_tile[kDepth][kTile + 1];
  const int64_t first_i = static_cast<int64_t>(blockIdx.x % row_blocks) * kTile;
  const int64_t first_j = static_cast<int64_t>(blockIdx.x / row_blocks) * kTile;
  const int column = threadIdx.x % kSide, row = threadIdx.x / kSide;
  float sums[kPerThread][kPerThread] = {};  // [j][i]
  for (int64_t p = 0; p < product.k; p += kDepth) {
    load(a_tile, static_cast<const A*>(product.a), product.m, product.k, product.transpose_a, first_i, p);
    load(b_tile, static_cast<const B*>(product.b), product.n, product.k, !product.transpose_b, first_j, p);
    __syncthreads();
    for (int term = 0; term < kDepth; ++term) {
      for (int j = 0; j < kPerThread; ++j) {
        for (int i = 0; i < kPerThread; ++i) {
          sums[j][i] += a_tile[term][column + i * kSide] * b_tile[term][row + j * kSide];
        }
      }
    }
    __syncthreads();
  }
  D* d = static_cast<D*>(product.d);
  for (int j = 0; j < kPerThread; ++j) {
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t to_i = first_i + column + i * kSide, to_j = first_j + row + j * kSide;
      if (to_i >= product.m || to_j >= product.n) continue;
      float value = sums[j][i];
      if (product.bias != nullptr) value += bias_at(product, to_i);
      D& to = d[to_j * product.m + to_i];
      if (product.accumulate) value += static_cast<float>(to);
      to = from_float<D>(value);
    }
  }
}

template <typename A, typename B, typename Half>
cudaError_t launch(cudaStream_t stream, const Product& product) {
  // In one dimension: the others end at 65535.
  const auto row_blocks = static_cast<unsigned>((product.m + kTile - 1) / kTile);
  const auto blocks = static_cast<unsigned>(row_blocks * ((product.n + kTile - 1) / kTile));
  if (product.d_type != DType::kF32) {
    multiply<A, B, Half><<<blocks, kThreads, 0, stream>>>(product, row_blocks);
  } else {
    multiply<A, B, float><<<blocks, kThreads, 0, stream>>>(product, row_blocks);
  }
  return cudaGetLastError();
}

// Half: what is not f32.
template <typename Half>
cudaError_t launch_mixed(cudaStream_t stream, const Product& product) {
  const bool a_half = product.a_type != DType::kF32, b_half = product.b_type != DType::kF32;
  if (a_half && b_half) return launch<Half, Half, Half>(stream, product);
  if (a_half) return launch<Half, float, Half>(stream, product);
  if (b_half) return launch<float, Half, Half>(stream, product);
  return launch<float, float, Half>(stream, product);
}

}  // namespace

cudaError_t launch_product(cudaStream_t stream, const Product& product) {
  const bool f16 = product.a_type == DType::kF16 || product.b_type == DType::kF16 || product.d_type == DType::kF16;
  return f16 ? launch_mixed<__half>(stream, product) : launch_mixed<__nv_bfloat16>(stream, product);
}

}  // namespace telar::backend::cuda
