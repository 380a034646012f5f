#pragma once

#include <cmath>

#include "tests/reference/values.h"

namespace telar::reference {

struct RmsNorm {
  Values y, rstd;
};

// y = x / sqrt(mean(x^2) + epsilon) weight over rows of `width`.
inline RmsNorm rms_norm(const Values& x, const Values& weight, double epsilon, int64_t width) {
  const size_t rows = x.size() / width;
  RmsNorm out{Values(x.size()), Values(rows)};
  for (size_t t = 0; t < rows; ++t) {
    double square = 0;
    for (int64_t c = 0; c < width; ++c) square += x[t * width + c] * x[t * width + c] / static_cast<double>(width);
    out.rstd[t] = 1 / std::sqrt(square + epsilon);
    for (int64_t c = 0; c < width; ++c) out.y[t * width + c] = x[t * width + c] * out.rstd[t] * weight[c];
  }
  return out;
}

// Adds to dx and dweight.
inline void rms_norm_backward(const Values& dy, const Values& x, const Values& weight, double epsilon, int64_t width,
                              Values& dx, Values& dweight) {
  const RmsNorm forward = rms_norm(x, weight, epsilon, width);
  for (size_t t = 0; t < x.size() / width; ++t) {
    const double rstd = forward.rstd[t];
    double dsquare = 0;  // By the mean of squares.
    for (int64_t c = 0; c < width; ++c) {
      dsquare -= 0.5 * dy[t * width + c] * weight[c] * x[t * width + c] * rstd * rstd * rstd;
    }
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = t * width + c;
      dx[i] += dy[i] * weight[c] * rstd + dsquare * 2 * x[i] / static_cast<double>(width);
      dweight[c] += dy[i] * x[i] * rstd;
    }
  }
}

}  // namespace telar::reference
