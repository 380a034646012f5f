#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 128;

// Block x: token x; `starts` may be null. (a, b) -> (a cos - b sin, b cos + a sin) for a = head[i], b = head[i + half],
// packs of i at a time.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* qkv, const float* __restrict__ table, const int32_t* starts, int64_t width, int64_t sequence,
                int heads, int half, float sign) {
  constexpr int kN = kPackSize<T>;
  T* row = qkv + blockIdx.x * width;
  const int64_t start = starts != nullptr ? starts[blockIdx.x] : 0;
  const float* cosines = table + (blockIdx.x % sequence - start) * 2 * half;
  const int packs = (half + kN - 1) / kN;
  for (int item = threadIdx.x; item < heads * packs; item += kThreads) {
    T* low = row + item / packs * 2 * half;
    T* high = low + half;
    const int at = item % packs * kN;
    auto a = load_pack<kVector, kN>(low, at, half);
    auto b = load_pack<kVector, kN>(high, at, half);
    const auto cosine = load_pack<kVector, kN>(cosines, at, half);
    const auto sine = load_pack<kVector, kN>(cosines + half, at, half);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float x = a.get(i), y = b.get(i), c = cosine.get(i), s = sign * sine.get(i);
      a.set(i, x * c - y * s);
      b.set(i, y * c + x * s);
    }
    store_pack<kVector, kN>(low, at, half, a);
    store_pack<kVector, kN>(high, at, half, b);
  }
}

absl::Status rotate(const char* op, cudaStream_t stream, const AttentionDims& dims, In table, In starts, InOut qkv,
                    float sign) {
  const int half = static_cast<int>(dims.head_dim / 2);
  const int heads = static_cast<int>(dims.heads + dims.kv_heads);
  with_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    T* to = target<T>(qkv);
    const float* angles = source<float>(table);
    with_bool(half % kN == 0 && fits_packs<kN>(to) && fits_packs<kN>(angles), [&](auto vector) {
      rope_kernel<vector.value><<<static_cast<unsigned>(qkv.rows()), kThreads, 0, stream>>>(
          to, angles, source<int32_t>(starts), qkv.cols(), dims.sequence, heads, half, sign);
    });
  });
  return to_status(cudaGetLastError(), op);
}

}  // namespace

absl::Status CudaKernels::rope(Stream& stream, const AttentionDims& dims, In table, In starts, InOut qkv) {
  if (absl::Status status = check_rope("rope", dims, table, starts, qkv); !status.ok()) return status;
  return rotate("rope", handle_of(stream), dims, table, starts, qkv, 1.0f);
}

absl::Status CudaKernels::rope_backward(Stream& stream, const AttentionDims& dims, In table, In starts, InOut dqkv) {
  if (absl::Status status = check_rope("rope_backward", dims, table, starts, dqkv); !status.ok()) return status;
  return rotate("rope_backward", handle_of(stream), dims, table, starts, dqkv, -1.0f);
}

}  // namespace telar::backend::cuda
