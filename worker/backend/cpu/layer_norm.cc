#include <cmath>

#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/row_sums.h"

namespace telar::backend::cpu {

namespace {

struct Statistics {
  float mean;
  float rstd;
};

// `sum` is written unless delta is null; what is normed is the sum as stored, because the backward sees that one.
template <typename T>
TELAR_SIMD Statistics norm_row(const T* residual, const T* delta, const float* weight, const float* bias, float epsilon,
                               T* sum, T* y, int64_t width) {
  const T* x = residual;
  if (delta != nullptr) {
    for (int64_t c = 0; c < width; ++c) store(load(residual[c]) + load(delta[c]), sum[c]);
    x = sum;
  }
  const float mean = sum_of(width, [=](int64_t c) { return load(x[c]); }) / static_cast<float>(width);
  const float squares = sum_of(width, [=](int64_t c) { return (load(x[c]) - mean) * (load(x[c]) - mean); });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
  if (bias != nullptr) {
    for (int64_t c = 0; c < width; ++c) store((load(x[c]) - mean) * rstd * weight[c] + bias[c], y[c]);
  } else {
    for (int64_t c = 0; c < width; ++c) store((load(x[c]) - mean) * rstd * weight[c], y[c]);
  }
  return {mean, rstd};
}

// With n = (x - mean) rstd and g = dy weight: dx += rstd (g - mean(g) - n mean(g n)); dweight += dy n; dbias += dy.
template <typename T>
TELAR_SIMD void norm_row_backward(const T* __restrict dy, const T* __restrict x, const float* __restrict weight,
                                  Statistics row, T* __restrict dx, float* __restrict dweight, float* __restrict dbias,
                                  int64_t width) {
  const auto normed = [=](int64_t c) { return (load(x[c]) - row.mean) * row.rstd; };
  const auto g = [=](int64_t c) { return load(dy[c]) * weight[c]; };
  const float mean_g = sum_of(width, g) / static_cast<float>(width);
  const float mean_gn = sum_of(width, [=](int64_t c) { return g(c) * normed(c); }) / static_cast<float>(width);
  for (int64_t c = 0; c < width; ++c) {
    const float n = normed(c);
    dweight[c] += load(dy[c]) * n;
    dbias[c] += load(dy[c]);
    store(load(dx[c]) + row.rstd * (g(c) - mean_g - n * mean_gn), dx[c]);
  }
}

}  // namespace

absl::Status CpuKernels::layer_norm(Stream& stream, In residual, In delta, In weight, In bias, float epsilon, Out sum,
                                    Out y, Out mean, Out rstd, Out amax) {
  if (absl::Status s = check_layer_norm(residual, delta, weight, bias, sum, y, mean, rstd, amax); !s.ok()) return s;
  const int64_t width = residual.cols();
  float* widened = scratch(Scratch::kWeights, 2 * width);
  const float* w = widen(weight, widened);
  const float* b = bias.absent() ? nullptr : widen(bias, widened + width);
  with_type(residual.dtype, [&](auto type) {
    using T = decltype(type);
    const bool adds = !delta.absent();
    parallel_pieces(residual.rows(), kRowPiece, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const Statistics row =
            norm_row(residual.as<T>() + t * width, adds ? delta.as<T>() + t * width : nullptr, w, b, epsilon,
                     adds ? sum.as<T>() + t * width : nullptr, y.as<T>() + t * width, width);
        mean.as<float>()[t] = row.mean;
        rstd.as<float>()[t] = row.rstd;
      }
    });
  });
  return amax.absent() ? absl::OkStatus() : this->amax(stream, In(y), In(), amax);
}

absl::Status CpuKernels::layer_norm_backward(Stream&, In dy, In x, In weight, In mean, In rstd, InOut dx, InOut dweight,
                                             InOut dbias) {
  if (absl::Status s = check_layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias); !s.ok()) return s;
  const int64_t width = x.cols();
  const float* w = widen(weight, scratch(Scratch::kWeights, width));
  const auto total = [&](int64_t column, int64_t n, const float* partial) {
    // A partial holds the weight's gradient, then the bias's; a piece of columns may reach over both.
    for (int64_t c = column; c < column + n; ++c, ++partial) {
      if (c < width) {
        dweight.as<float>()[c] += *partial;
      } else if (!dbias.absent()) {
        dbias.as<float>()[c - width] += *partial;
      }
    }
  };
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto sum_piece = [&](int64_t first, int64_t last, float* partial) {
      for (int64_t t = first; t < last; ++t) {
        norm_row_backward(dy.as<T>() + t * width, x.as<T>() + t * width, w, {mean.as<float>()[t], rstd.as<float>()[t]},
                          dx.as<T>() + t * width, partial, partial + width, width);
      }
    };
    sum_rows(x.rows(), 2 * width, sum_piece, total);
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
