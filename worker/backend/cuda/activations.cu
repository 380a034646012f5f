#include "worker/backend/check.h"
#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/elementwise.cuh"
#include "worker/backend/cuda/gelu.cuh"
#include "worker/backend/cuda/gelu.h"
#include "worker/backend/cuda/greatest.cuh"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Block (x, y): 32 packs of columns, rows_per_block rows, shared out as in column_sums.cu, whose sums of dx these are.
// partials: [gridDim.y, width]. amax: see Greatest; may be null.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    gelu_backward_sums_kernel(const T* dy, const T* x, int64_t rows, int64_t width, int64_t rows_per_block, T* dx,
                              float* partials, float* amax) {
  constexpr int kN = kPackSize<T>, kColumns = 32 * kN;
  __shared__ float sums[kWarps][kColumns];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t at = first_column + lane * kN;
  const int64_t first = blockIdx.y * rows_per_block;
  const int64_t last = min(rows, first + rows_per_block);
  float sum[kN] = {};
  Greatest<T> greatest;
  // Two rows at a time, as loads do not move ahead of stores that may be to the same memory.
  for (int64_t row = first + warp; row < last; row += 2 * kWarps) {
    const bool has_next = row + kWarps < last;
    const int64_t start = row * width, next = (row + kWarps) * width;
    const Pack<T, kN> d[2] = {load_pack<kVector, kN>(dy + start, at, width),
                              load_pack<kVector, kN>(dy + next, at, has_next ? width : 0)};
    const Pack<T, kN> v[2] = {load_pack<kVector, kN>(x + start, at, width),
                              load_pack<kVector, kN>(x + next, at, has_next ? width : 0)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float results[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) results[i] = GeluBackward{}(d[r].get(i), v[r].get(i));
      const auto stored = rounded<T>(results);
      store_pack<kVector, kN>(dx + (r == 0 ? start : next), at, r == 0 || has_next ? width : 0, stored);
      greatest.take(stored);
      // What the second row is not, is 0.
#pragma unroll
      for (int i = 0; i < kN; ++i) sum[i] += stored.get(i);
    }
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) sums[warp][lane * kN + i] = sum[i];
  __syncthreads();
  for (int c = threadIdx.x; c < kColumns && first_column + c < width; c += kThreads) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += sums[w][c];
    partials[blockIdx.y * width + first_column + c] = total;
  }
  if (amax != nullptr) greatest.publish(amax);
}

// Block (x, y): row x, packs of columns [y kThreads, (y + 1) kThreads). amax: see Greatest.
template <bool kVector, bool kAmax, typename T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const T* gate_up, int64_t width, T* y, float* amax) {
  constexpr int kN = kPackSize<T>;
  const int64_t row = blockIdx.x;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kN;
  if (!kAmax && at >= width) return;  // Else all threads of the block have to come to its end.
  const T* gates = gate_up + row * 2 * width;
  const auto gate = load_pack<kVector, kN>(gates, at, width);
  const auto up = load_pack<kVector, kN>(gates + width, at, width);
  float results[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float g = gate.get(i);
    results[i] = g * sigmoid(g) * up.get(i);
  }
  const auto stored = rounded<T>(results);
  store_pack<kVector, kN>(y + row * width, at, width, stored);
  if constexpr (kAmax) {
    Greatest<T> greatest;
    greatest.take(stored);  // 0 from the end of the row on.
    greatest.publish(amax);
  }
}

// silu'(g) = s + g s (1 - s).
template <bool kVector, bool kAmax, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const T* dy, const T* gate_up, int64_t width, T* dgate_up, float* amax) {
  constexpr int kN = kPackSize<T>;
  const int64_t row = blockIdx.x;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kN;
  if (!kAmax && at >= width) return;
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
  const auto stored_gate = rounded<T>(dgate), stored_up = rounded<T>(dup);
  store_pack<kVector, kN>(dgates, at, width, stored_gate);
  store_pack<kVector, kN>(dgates + width, at, width, stored_up);
  if constexpr (kAmax) {
    Greatest<T> greatest;
    greatest.take(stored_gate);
    greatest.take(stored_up);
    greatest.publish(amax);
  }
}

template <typename T>
dim3 swiglu_grid(int64_t rows, int64_t width) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(width, kThreads * kPackSize<T>)));
}

}  // namespace

absl::Status CudaKernels::gelu(Stream& stream, In x, Out y, Out amax) {
  if (absl::Status status = check_gelu(x, y, amax); !status.ok()) return status;
  const cudaStream_t on = handle_of(stream);
  if (absl::Status status = to_status(clear_greatest(on, amax), "gelu: amax"); !status.ok()) return status;
  return to_status(launch_gelu(on, x.dtype, x.elements(), x.data, y.data, target<float>(amax)), "gelu");
}

absl::Status CudaKernels::gelu_backward(Stream& stream, In dy, In x, Out dx, InOut dbias, Out amax) {
  constexpr const char* kOp = "gelu_backward";
  if (absl::Status status = check_gelu_backward(dy, x, dx, dbias, amax); !status.ok()) return status;
  const cudaStream_t on = handle_of(stream);
  if (dbias.absent() || dx.elements() == 0) {
    const absl::Status status = with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      return to_status(map(on, x.elements(), GeluBackward{}, target<T>(dx), source<T>(dy), source<T>(x)), kOp);
    });
    return !status.ok() || amax.absent() ? status : this->amax(stream, In(dx), In(), amax);
  }
  if (absl::Status status = to_status(clear_greatest(on, amax), "gelu_backward: amax"); !status.ok()) return status;
  const ColumnSums sums = column_sums_of(In(dx));
  const auto memory = workspaces_.get(kOp, on, sums.partial_bytes());
  if (!memory.ok()) return memory.status();
  float* partials = reinterpret_cast<float*>(*memory);
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T *d = source<T>(dy), *v = source<T>(x);
    T* to = target<T>(dx);
    const bool fits = sums.width % kN == 0 && fits_packs<kN>(d) && fits_packs<kN>(v) && fits_packs<kN>(to);
    const dim3 grid(static_cast<unsigned>(sums.column_blocks), static_cast<unsigned>(sums.row_blocks));
    with_bool(fits, [&](auto vector) {
      gelu_backward_sums_kernel<vector.value><<<grid, kThreads, 0, on>>>(
          d, v, sums.rows, sums.width, sums.rows_per_block, to, partials, target<float>(amax));
    });
  });
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) {
    error = add_partials(on, partials, sums.row_blocks, sums.width, sums.width, target<float>(dbias));
  }
  return to_status(error, kOp);
}

absl::Status CudaKernels::swiglu(Stream& stream, In gate_up, Out y, Out amax) {
  if (absl::Status status = check_swiglu(gate_up, y, amax); !status.ok()) return status;
  const int64_t width = y.cols();
  const cudaStream_t on = handle_of(stream);
  if (absl::Status status = to_status(clear_greatest(on, amax), "swiglu: amax"); !status.ok()) return status;
  with_type(y.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T* from = source<T>(gate_up);
    T* to = target<T>(y);
    with_bool(width % kN == 0 && fits_packs<kN>(from) && fits_packs<kN>(to), [&](auto vector) {
      with_bool(!amax.absent(), [&](auto finds_amax) {
        swiglu_kernel<vector.value, finds_amax.value>
            <<<swiglu_grid<T>(y.rows(), width), kThreads, 0, on>>>(from, width, to, target<float>(amax));
      });
    });
  });
  return to_status(cudaGetLastError(), "swiglu");
}

absl::Status CudaKernels::swiglu_backward(Stream& stream, In dy, In gate_up, Out dgate_up, Out amax) {
  if (absl::Status status = check_swiglu_backward(dy, gate_up, dgate_up, amax); !status.ok()) return status;
  const int64_t width = dy.cols();
  const cudaStream_t on = handle_of(stream);
  if (absl::Status status = to_status(clear_greatest(on, amax), "swiglu_backward: amax"); !status.ok()) return status;
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T *d = source<T>(dy), *from = source<T>(gate_up);
    T* to = target<T>(dgate_up);
    const bool fits = width % kN == 0 && fits_packs<kN>(d) && fits_packs<kN>(from) && fits_packs<kN>(to);
    with_bool(fits, [&](auto vector) {
      with_bool(!amax.absent(), [&](auto finds_amax) {
        swiglu_backward_kernel<vector.value, finds_amax.value>
            <<<swiglu_grid<T>(dy.rows(), width), kThreads, 0, on>>>(d, from, width, to, target<float>(amax));
      });
    });
  });
  return to_status(cudaGetLastError(), "swiglu_backward");
}

}  // namespace telar::backend::cuda
