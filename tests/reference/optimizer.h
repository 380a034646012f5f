#pragma once

#include <cmath>

#include "tests/reference/values.h"

namespace telar::reference {

inline double sum_squares(const Values& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return sum;
}

struct AdamW {
  double beta1, beta2, epsilon, weight_decay, learning_rate;
};

// Step number `step` (from 1) of Loshchilov & Hutter 2019, algorithm 2 with the schedule in the learning rate.
inline void adamw(const AdamW& a, int step, const Values& grad, double scale, Values& master, Values& m, Values& v) {
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * scale;
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
    const double m_hat = m[i] / (1 - std::pow(a.beta1, step)), v_hat = v[i] / (1 - std::pow(a.beta2, step));
    master[i] -= a.learning_rate * (m_hat / (std::sqrt(v_hat) + a.epsilon) + a.weight_decay * master[i]);
  }
}

}  // namespace telar::reference
