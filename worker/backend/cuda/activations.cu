#include "worker/backend/check.h"
#include "worker/backend/cuda/async_copy.cuh"
#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/elementwise.cuh"
#include "worker/backend/cuda/gelu.cuh"
#include "worker/backend/cuda/gelu.h"
#include "worker/backend/cuda/occupancy.h"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

constexpr int kStages = 4;  // Rows that a thread of gelu_backward_sums_kernel works on or has asked for.

// Block (x, y): 32 packs of columns, rows_per_block rows, shared out as in column_sums.cu, whose sums of dx these are.
// partials: [gridDim.y, width]. Each thread has packs of the next rows in shared memory for itself, as loads do not
// move ahead of stores that may be to the same memory.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    gelu_backward_sums_kernel(const T* dy, const T* x, int64_t rows, int64_t width, int64_t rows_per_block, T* dx,
                              float* partials) {
  constexpr int kN = kPackSize<T>, kColumns = 32 * kN;
  __shared__ float sums[kWarps][kColumns];
  __shared__ uint4 stages[kVector ? kStages : 1][2][kThreads];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t at = first_column + lane * kN;
  const bool has_columns = at < width;
  const int64_t first = blockIdx.y * rows_per_block;
  const int64_t last = min(rows, first + rows_per_block);
  // Nothing where there is no such row, which counts as a group all the same.
  const auto fetch = [&](int stage, int64_t row) {
    if constexpr (kVector) {
      if (row < last && has_columns) {
        copy_pack_async(&stages[stage][0][threadIdx.x], dy + row * width + at, true);
        copy_pack_async(&stages[stage][1][threadIdx.x], x + row * width + at, true);
      }
      commit_copies();
    }
  };
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage, first + warp + stage * kWarps);
  float sum[kN] = {};
  int stage = 0;
  for (int64_t row = first + warp; row < last; row += kWarps) {
    // Into the place of the row before this one.
    fetch(stage == 0 ? kStages - 1 : stage - 1, row + (kStages - 1) * kWarps);
    const int64_t start = row * width;
    Pack<T, kN> d{}, v{};
    if constexpr (kVector) {
      wait_for_copies<kStages - 1>();
      if (has_columns) {
        memcpy(&d, &stages[stage][0][threadIdx.x], sizeof(uint4));
        memcpy(&v, &stages[stage][1][threadIdx.x], sizeof(uint4));
      }
    } else {
      d = load_pack<false, kN>(dy + start, at, width);
      v = load_pack<false, kN>(x + start, at, width);
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
    float results[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) results[i] = GeluBackward{}(d.get(i), v.get(i));
    const auto stored = rounded<T>(results);
    store_pack<kVector, kN>(dx + start, at, width, stored);
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[i] += stored.get(i);
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

// Block (x, y): row x, packs of columns [y kThreads, (y + 1) kThreads).
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const T* gate_up, int64_t width, T* y) {
  constexpr int kN = kPackSize<T>;
  const int64_t row = blockIdx.x;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kN;
  if (at >= width) return;
  const T* gates = gate_up + row * 2 * width;
  const auto gate = load_pack<kVector, kN>(gates, at, width);
  const auto up = load_pack<kVector, kN>(gates + width, at, width);
  float results[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float g = gate.get(i);
    results[i] = g * sigmoid(g) * up.get(i);
  }
  store_pack<kVector, kN>(y + row * width, at, width, rounded<T>(results));
}

// silu'(g) = s + g s (1 - s).
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const T* dy, const T* gate_up, int64_t width, T* dgate_up) {
  constexpr int kN = kPackSize<T>;
  const int64_t row = blockIdx.x;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kN;
  if (at >= width) return;
  const T* gates = gate_up + row * 2 * width;
  T* dgates = dgate_up + row * 2 * width;
  const auto d = load_pack<kVector, kN>(dy + row * width, at, width);
  const auto gate = load_pack<kVector, kN>(gates, at, width);
  const auto up = load_pack<kVector, kN>(gates + width, at, width);
  float dgate[kN], dup[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float g = gate.get(i);
    const auto [s, rest] = sigmoid_parts(-kLog2E * g);
    const float ds = d.get(i) * s;
    dgate[i] = ds * up.get(i) * fmaf(g, rest, 1.0f);
    dup[i] = ds * g;
  }
  store_pack<kVector, kN>(dgates, at, width, rounded<T>(dgate));
  store_pack<kVector, kN>(dgates + width, at, width, rounded<T>(dup));
}

template <typename T>
dim3 swiglu_grid(int64_t rows, int64_t width) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(width, kThreads * kPackSize<T>)));
}

}  // namespace

absl::Status CudaKernels::gelu(Stream& stream, In x, Out y) {
  if (absl::Status status = check_gelu(x, y); !status.ok()) return status;
  return to_status(launch_gelu(handle_of(stream), x.dtype, x.elements(), x.data, y.data), "gelu");
}

absl::Status CudaKernels::gelu_backward(Stream& stream, In dy, In x, Out dx, InOut dbias) {
  constexpr const char* kOp = "gelu_backward";
  if (absl::Status status = check_gelu_backward(dy, x, dx, dbias); !status.ok()) return status;
  const cudaStream_t on = handle_of(stream);
  if (dbias.absent() || dx.elements() == 0) {
    return with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      return to_status(map(on, x.elements(), GeluBackward{}, target<T>(dx), source<T>(dy), source<T>(x)), kOp);
    });
  }
  const ColumnSums sums = column_sums_of(In(dx));
  const auto memory = workspaces_.get(kOp, on, sums.partial_bytes());
  if (!memory.ok()) return memory.status();
  float* partials = reinterpret_cast<float*>(*memory);
  cudaError_t error = with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T *d = source<T>(dy), *v = source<T>(x);
    T* to = target<T>(dx);
    const bool fits = sums.width % kN == 0 && fits_packs<kN>(d) && fits_packs<kN>(v) && fits_packs<kN>(to);
    const dim3 grid(static_cast<unsigned>(sums.column_blocks), static_cast<unsigned>(sums.row_blocks));
    return with_bool(fits, [&](auto vector) {
      const auto kernel = gelu_backward_sums_kernel<vector.value, T>;
      if (cudaError_t status = allow_shared(reinterpret_cast<const void*>(kernel), 0); status != cudaSuccess) {
        return status;
      }
      kernel<<<grid, kThreads, 0, on>>>(d, v, sums.rows, sums.width, sums.rows_per_block, to, partials);
      return cudaGetLastError();
    });
  });
  if (error == cudaSuccess) {
    error = add_partials(on, partials, sums.row_blocks, sums.width, sums.width, target<float>(dbias));
  }
  return to_status(error, kOp);
}

absl::Status CudaKernels::swiglu(Stream& stream, In gate_up, Out y) {
  if (absl::Status status = check_swiglu(gate_up, y); !status.ok()) return status;
  const int64_t width = y.cols();
  with_type(y.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T* from = source<T>(gate_up);
    T* to = target<T>(y);
    with_bool(width % kN == 0 && fits_packs<kN>(from) && fits_packs<kN>(to), [&](auto vector) {
      swiglu_kernel<vector.value><<<swiglu_grid<T>(y.rows(), width), kThreads, 0, handle_of(stream)>>>(from, width, to);
    });
  });
  return to_status(cudaGetLastError(), "swiglu");
}

absl::Status CudaKernels::swiglu_backward(Stream& stream, In dy, In gate_up, Out dgate_up) {
  if (absl::Status status = check_swiglu_backward(dy, gate_up, dgate_up); !status.ok()) return status;
  const int64_t width = dy.cols();
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T *d = source<T>(dy), *from = source<T>(gate_up);
    T* to = target<T>(dgate_up);
    const bool fits = width % kN == 0 && fits_packs<kN>(d) && fits_packs<kN>(from) && fits_packs<kN>(to);
    with_bool(fits, [&](auto vector) {
      swiglu_backward_kernel<vector.value>
          <<<swiglu_grid<T>(dy.rows(), width), kThreads, 0, handle_of(stream)>>>(d, from, width, to);
    });
  });
  return to_status(cudaGetLastError(), "swiglu_backward");
}

}  // namespace telar::backend::cuda
