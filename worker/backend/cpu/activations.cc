#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/row_sums.h"
#include "worker/backend/cpu/simd.h"

namespace telar::backend::cpu {

namespace {

// GELU's tanh form is x sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 = sigmoid(2 u).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

template <typename T>
TELAR_SIMD void gelu_piece(const T* x, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = load(x[i]);
    store(v * sigmoid(kTwoRootTwoOverPi * v * (1.0f + kCubic * v * v)), y[i]);
  }
}

// d/dx x s(2u) = s + x s (1 - s) 2u'.
template <typename T>
TELAR_SIMD void gelu_backward_piece(const T* dy, const T* x, T* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = load(x[i]);
    const float s = sigmoid(kTwoRootTwoOverPi * v * (1.0f + kCubic * v * v));
    const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * v * v);
    store(load(dy[i]) * (s + v * slope * s * (1.0f - s)), dx[i]);
  }
}

template <typename T>
TELAR_SIMD void swiglu_row(const T* gate, const T* up, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(gate[i]);
    store(g * sigmoid(g) * load(up[i]), y[i]);
  }
}

// silu'(g) = s + g s (1 - s).
template <typename T>
TELAR_SIMD void swiglu_backward_row(const T* __restrict dy, const T* __restrict gate, const T* __restrict up,
                                    T* __restrict dgate, T* __restrict dup, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(gate[i]);
    const float d = load(dy[i]);
    const float s = sigmoid(g);
    store(d * load(up[i]) * (s + g * s * (1.0f - s)), dgate[i]);
    store(d * g * s, dup[i]);
  }
}

}  // namespace

absl::Status CpuKernels::gelu(Stream& stream, In x, Out y, Out amax) {
  if (absl::Status status = check_gelu(x, y, amax); !status.ok()) return status;
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(x.elements(), kElementPiece, [&](int64_t first, int64_t last) {
      gelu_piece(x.as<T>() + first, y.as<T>() + first, last - first);
    });
  });
  return amax.absent() ? absl::OkStatus() : this->amax(stream, In(y), In(), amax);
}

absl::Status CpuKernels::gelu_backward(Stream& stream, In dy, In x, Out dx, InOut dbias, Out amax) {
  if (absl::Status status = check_gelu_backward(dy, x, dx, dbias, amax); !status.ok()) return status;
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(x.elements(), kElementPiece, [&](int64_t first, int64_t last) {
      gelu_backward_piece(dy.as<T>() + first, x.as<T>() + first, dx.as<T>() + first, last - first);
    });
  });
  if (!dbias.absent() && dx.elements() > 0) add_column_sums(In(dx), dbias);
  return amax.absent() ? absl::OkStatus() : this->amax(stream, In(dx), In(), amax);
}

absl::Status CpuKernels::swiglu(Stream& stream, In gate_up, Out y, Out amax) {
  if (absl::Status status = check_swiglu(gate_up, y, amax); !status.ok()) return status;
  const int64_t width = y.cols();
  with_type(y.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(y.rows(), kRowPiece, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const T* gate = gate_up.as<T>() + t * 2 * width;
        swiglu_row(gate, gate + width, y.as<T>() + t * width, width);
      }
    });
  });
  return amax.absent() ? absl::OkStatus() : this->amax(stream, In(y), In(), amax);
}

absl::Status CpuKernels::swiglu_backward(Stream& stream, In dy, In gate_up, Out dgate_up, Out amax) {
  if (absl::Status status = check_swiglu_backward(dy, gate_up, dgate_up, amax); !status.ok()) return status;
  const int64_t width = dy.cols();
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(dy.rows(), kRowPiece, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const T* gate = gate_up.as<T>() + t * 2 * width;
        T* dgate = dgate_up.as<T>() + t * 2 * width;
        swiglu_backward_row(dy.as<T>() + t * width, gate, gate + width, dgate, dgate + width, width);
      }
    });
  });
  return amax.absent() ? absl::OkStatus() : this->amax(stream, In(dgate_up), In(), amax);
}

}  // namespace telar::backend::cpu
