#pragma once

#include <cmath>

#include "tests/reference/values.h"

namespace telar::reference {

struct LayerNorm {
  Values y, mean, rstd;
};

// y = (x - mean) rstd weight + bias over rows of `width`; bias: empty = none.
inline LayerNorm layer_norm(const Values& x, const Values& weight, const Values& bias, double epsilon, int64_t width) {
  const size_t rows = x.size() / width;
  LayerNorm out{Values(x.size()), Values(rows), Values(rows)};
  for (size_t t = 0; t < rows; ++t) {
    const double* row = &x[t * width];
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < width; ++c) mean += row[c] / static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c) variance += (row[c] - mean) * (row[c] - mean) / static_cast<double>(width);
    out.mean[t] = mean;
    out.rstd[t] = 1 / std::sqrt(variance + epsilon);
    for (int64_t c = 0; c < width; ++c) {
      out.y[t * width + c] = (row[c] - mean) * out.rstd[t] * weight[c] + (bias.empty() ? 0 : bias[c]);
    }
  }
  return out;
}

// Adds to dx, dweight and, unless empty, dbias. By the chain rule through mean and variance, term by term.
inline void layer_norm_backward(const Values& dy, const Values& x, const Values& weight, double epsilon, int64_t width,
                                Values& dx, Values& dweight, Values& dbias) {
  const LayerNorm forward = layer_norm(x, weight, {}, epsilon, width);
  const double n = static_cast<double>(width);
  for (size_t t = 0; t < x.size() / width; ++t) {
    const double mean = forward.mean[t], rstd = forward.rstd[t];
    double dmean = 0, dvariance = 0;
    for (int64_t c = 0; c < width; ++c) {
      const double g = dy[t * width + c] * weight[c], centred = x[t * width + c] - mean;
      dmean -= g * rstd;
      dvariance -= 0.5 * g * centred * rstd * rstd * rstd;
    }
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = t * width + c;
      const double centred = x[i] - mean;
      dx[i] += dy[i] * weight[c] * rstd + dmean / n + dvariance * 2 * centred / n;
      dweight[c] += dy[i] * centred * rstd;
      if (!dbias.empty()) dbias[c] += dy[i];
    }
  }
}

}  // namespace telar::reference
