#pragma once

#include "tests/reference/activations.h"
#include "tests/reference/values.h"

namespace telar::reference {

// y[T, N] = x[T, K] w[N, K]^T + bias[N] (empty = none).
inline Values linear(const Values& x, const Values& w, const Values& bias, int64_t tokens, int64_t out, int64_t in) {
  Values y(tokens * out);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < out; ++n) {
      double sum = bias.empty() ? 0 : bias[n];
      for (int64_t k = 0; k < in; ++k) sum += x[t * in + k] * w[n * in + k];
      y[t * out + n] = sum;
    }
  }
  return y;
}

struct LinearGelu {
  Values before, after;
};
inline LinearGelu linear_gelu(const Values& x, const Values& w, const Values& bias, int64_t tokens, int64_t out,
                              int64_t in) {
  LinearGelu result{linear(x, w, bias, tokens, out, in), {}};
  result.after = result.before;
  for (double& value : result.after) value = gelu(value);
  return result;
}

inline Values linear_dgrad(const Values& dy, const Values& w, int64_t tokens, int64_t out, int64_t in) {
  Values dx(tokens * in, 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < out; ++n) {
      for (int64_t k = 0; k < in; ++k) dx[t * in + k] += dy[t * out + n] * w[n * in + k];
    }
  }
  return dx;
}

// Adds to dw[N, K] and, unless empty, dbias[N].
inline void linear_wgrad(const Values& dy, const Values& x, int64_t tokens, int64_t out, int64_t in, Values& dw,
                         Values& dbias) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < out; ++n) {
      for (int64_t k = 0; k < in; ++k) dw[n * in + k] += dy[t * out + n] * x[t * in + k];
      if (!dbias.empty()) dbias[n] += dy[t * out + n];
    }
  }
}

}  // namespace telar::reference
