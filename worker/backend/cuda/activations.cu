#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/elementwise.cuh"

namespace telar::backend::cuda {
namespace {

// GELU's tanh form is x sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 = sigmoid(2 u).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

// Absolute error near 1e-7. The fast exponential is off by |x| 2^-24 relative, where x is large and little of it is
// left in the result; the fast quotient is 0 for any denominator above 2^126.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// s = sigmoid(x) and 1 - s, the latter without cancellation as e^-x s. The exponential is kept finite for that.
struct SigmoidParts {
  float s, rest;
};
__device__ inline SigmoidParts sigmoid_parts(float x) {
  const float exponential = __expf(fminf(-x, 80.0f));
  const float s = __fdividef(1.0f, 1.0f + exponential);
  return {s, exponential * s};
}

struct Gelu {
  __device__ float operator()(float x) const { return x * sigmoid(kTwoRootTwoOverPi * x * (1.0f + kCubic * x * x)); }
};

// d/dx x s(2u) = s + x s (1 - s) 2u'.
struct GeluBackward {
  __device__ float operator()(float dy, float x) const {
    const auto [s, rest] = sigmoid_parts(kTwoRootTwoOverPi * x * (1.0f + kCubic * x * x));
    const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
    return dy * (s + x * slope * s * rest);
  }
};

constexpr int kThreads = 256;

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
  Pack<T, kN> result;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float g = gate.get(i);
    result.set(i, g * sigmoid(g) * up.get(i));
  }
  store_pack<kVector, kN>(y + row * width, at, width, result);
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
  Pack<T, kN> dgate, dup;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float g = gate.get(i);
    const auto [s, rest] = sigmoid_parts(g);
    dgate.set(i, d.get(i) * up.get(i) * (s + g * s * rest));
    dup.set(i, d.get(i) * g * s);
  }
  store_pack<kVector, kN>(dgates, at, width, dgate);
  store_pack<kVector, kN>(dgates + width, at, width, dup);
}

template <typename T>
dim3 swiglu_grid(int64_t rows, int64_t width) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(width, kThreads * kPackSize<T>)));
}

}  // namespace

absl::Status CudaKernels::gelu(Stream& stream, In x, Out y) {
  if (absl::Status status = check_gelu(x, y); !status.ok()) return status;
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return to_status(map(handle_of(stream), x.elements(), Gelu{}, target<T>(y), source<T>(x)), "gelu");
  });
}

absl::Status CudaKernels::gelu_backward(Stream& stream, In dy, In x, Out dx) {
  if (absl::Status status = check_gelu_backward(dy, x, dx); !status.ok()) return status;
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return to_status(map(handle_of(stream), x.elements(), GeluBackward{}, target<T>(dx), source<T>(dy), source<T>(x)),
                     "gelu_backward");
  });
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
