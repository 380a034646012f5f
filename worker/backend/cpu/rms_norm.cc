#include <cmath>

#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/row_sums.h"

namespace telar::backend::cpu {

namespace {

// Returns 1 / rms. `sum` is written unless delta is null; what is normed is the sum as stored.
template <typename T>
TELAR_SIMD float norm_row(const T* residual, const T* delta, const float* weight, float epsilon, T* sum, T* y,
                          int64_t width) {
  const T* x = residual;
  if (delta != nullptr) {
    for (int64_t c = 0; c < width; ++c) store(load(residual[c]) + load(delta[c]), sum[c]);
    x = sum;
  }
  const float squares = sum_of(width, [=](int64_t c) { return load(x[c]) * load(x[c]); });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
  for (int64_t c = 0; c < width; ++c) store(load(x[c]) * rstd * weight[c], y[c]);
  return rstd;
}

// With n = x rstd and g = dy weight: dx += rstd (g - n mean(g n)); dweight += dy n.
template <typename T>
TELAR_SIMD void norm_row_backward(const T* __restrict dy, const T* __restrict x, const float* __restrict weight,
                                  float rstd, T* __restrict dx, float* __restrict dweight, int64_t width) {
  const auto g = [=](int64_t c) { return load(dy[c]) * weight[c]; };
  const float mean_gn =
      sum_of(width, [=](int64_t c) { return g(c) * (load(x[c]) * rstd); }) / static_cast<float>(width);
  for (int64_t c = 0; c < width; ++c) {
    const float n = load(x[c]) * rstd;
    dweight[c] += load(dy[c]) * n;
    store(load(dx[c]) + rstd * (g(c) - n * mean_gn), dx[c]);
  }
}

}  // namespace

absl::Status CpuKernels::rms_norm(Stream& stream, In residual, In delta, In weight, float epsilon, Out sum, Out y,
                                  Out rstd, Out amax) {
  if (absl::Status s = check_rms_norm(residual, delta, weight, sum, y, rstd, amax); !s.ok()) return s;
  const int64_t width = residual.cols();
  const float* w = widen(weight, scratch(Scratch::kWeights, width));
  with_type(residual.dtype, [&](auto type) {
    using T = decltype(type);
    const bool adds = !delta.absent();
    parallel_pieces(residual.rows(), kRowPiece, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        rstd.as<float>()[t] = norm_row(residual.as<T>() + t * width, adds ? delta.as<T>() + t * width : nullptr, w,
                                       epsilon, adds ? sum.as<T>() + t * width : nullptr, y.as<T>() + t * width, width);
      }
    });
  });
  return amax.absent() ? absl::OkStatus() : this->amax(stream, In(y), In(), amax);
}

absl::Status CpuKernels::rms_norm_backward(Stream&, In dy, In x, In weight, In rstd, InOut dx, InOut dweight) {
  if (absl::Status s = check_rms_norm_backward(dy, x, weight, rstd, dx, dweight); !s.ok()) return s;
  const int64_t width = x.cols();
  const float* w = widen(weight, scratch(Scratch::kWeights, width));
  const auto total = [&](int64_t column, int64_t n, const float* partial) {
    accumulate(partial, dweight.as<float>() + column, n);
  };
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto sum_piece = [&](int64_t first, int64_t last, float* partial) {
      for (int64_t t = first; t < last; ++t) {
        norm_row_backward(dy.as<T>() + t * width, x.as<T>() + t * width, w, rstd.as<float>()[t], dx.as<T>() + t * width,
                          partial, width);
      }
    };
    sum_rows(x.rows(), width, sum_piece, total);
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
