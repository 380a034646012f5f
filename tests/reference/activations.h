#pragma once

#include <cmath>
#include <numbers>

#include "tests/reference/values.h"

namespace telar::reference {

inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

inline double gelu_derivative(double x) {
  const double k = std::sqrt(2 / std::numbers::pi);
  const double tanh = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * k * (1 + 3 * 0.044715 * x * x);
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }

inline double silu_derivative(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s + x * s * (1 - s);
}

// A row of gate_up holds `width` gates, then `width` ups.
inline Values swiglu(const Values& gate_up, int64_t width) {
  Values y(gate_up.size() / 2);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t gate = i / width * 2 * width + i % width;
    y[i] = silu(gate_up[gate]) * gate_up[gate + width];
  }
  return y;
}

inline Values swiglu_backward(const Values& dy, const Values& gate_up, int64_t width) {
  Values dgate_up(gate_up.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t gate = i / width * 2 * width + i % width;
    dgate_up[gate] = dy[i] * gate_up[gate + width] * silu_derivative(gate_up[gate]);
    dgate_up[gate + width] = dy[i] * silu(gate_up[gate]);
  }
  return dgate_up;
}

}  // namespace telar::reference
