#include <algorithm>
#include <cmath>

#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/simd.h"

namespace telar::backend::cpu {

namespace {

template <typename T>
TELAR_SIMD double squares_of(const T* x, int64_t n) {
  return sum_of<double>(n, [=](int64_t i) { return static_cast<double>(load(x[i])) * load(x[i]); });
}

// One step's constants: new moments m, v; then master -= rate (m / bias_1 / (sqrt(v / bias_2) + epsilon) + decay
// master).
struct Step {
  float beta1, beta2, epsilon;
  float scale;  // Of the gradient.
  float decay;  // Learning rate * weight decay. Not as a factor 1 - decay, which would round most of it off.
  float rate;   // Learning rate / bias correction 1.
  float inverse_bias_2;
};

TELAR_SIMD void update_piece(const Step& step, const float* __restrict grad, float* __restrict master,
                             float* __restrict exp_avg, float* __restrict exp_avg_sq, int64_t n) {
  const Step s = step;  // The compiler can't know that the stores below leave it alone.
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * s.scale;
    const float m = s.beta1 * exp_avg[i] + (1.0f - s.beta1) * g;
    const float v = s.beta2 * exp_avg_sq[i] + (1.0f - s.beta2) * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] -= s.rate * m / (std::sqrt(v * s.inverse_bias_2) + s.epsilon) + s.decay * master[i];
  }
}

template <typename T>
TELAR_SIMD void round_weights(const float* master, T* weight, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(master[i], weight[i]);
}

}  // namespace

absl::Status CpuKernels::sum_squares(Stream&, In x, InOut sum) {
  if (absl::Status status = check_sum_squares(x, sum); !status.ok()) return status;
  const int64_t pieces = (x.elements() + kElementPiece - 1) / kElementPiece;
  double* partials = scratch<double>(Scratch::kPartials, pieces);
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(x.elements(), kElementPiece, [&](int64_t first, int64_t last) {
      partials[first / kElementPiece] = squares_of(x.as<T>() + first, last - first);
    });
  });
  double total = 0;
  for (int64_t i = 0; i < pieces; ++i) total += partials[i];
  sum.as<float>()[0] += static_cast<float>(total);
  return absl::OkStatus();
}

absl::Status CpuKernels::clip_scale(Stream&, In sum_squares, In loss_scale, float max_norm, Out norm, Out scale) {
  if (absl::Status status = check_clip_scale(sum_squares, loss_scale, max_norm, norm, scale); !status.ok()) {
    return status;
  }
  const float factor = loss_scale.absent() ? 1.0f : loss_scale.as<float>()[0];
  const float value = std::sqrt(sum_squares.as<float>()[0]) / factor;
  norm.as<float>()[0] = value;
  if (!std::isfinite(value)) {
    scale.as<float>()[0] = 0.0f;
  } else {
    scale.as<float>()[0] = (max_norm == 0 ? 1.0f : std::min(1.0f, max_norm / (value + 1e-6f))) / factor;
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::advance_step(Stream&, const StepParams& params, In scale, InOut state, InOut step) {
  if (absl::Status status = check_advance_step(params, scale, state, step); !status.ok()) return status;
  float* s = state.as<float>();
  const bool skipped = scale.as<float>()[0] == 0;
  s[kSkipped] = skipped ? 1.0f : 0.0f;
  if (skipped) {
    s[kSkippedSteps] += 1;
    s[kGoodSteps] = 0;
    s[kLossScale] = std::max(params.min_loss_scale, s[kLossScale] * params.backoff_factor);
  } else {
    s[kAppliedSteps] += 1;
    s[kGoodSteps] += 1;
    if (s[kGoodSteps] >= static_cast<float>(params.growth_interval)) {
      s[kGoodSteps] = 0;
      s[kLossScale] = std::min(params.max_loss_scale, s[kLossScale] * params.growth_factor);
    }
  }
  const double t = std::max(1.0f, s[kAppliedSteps]);  // Before the first applied step nothing is corrected.
  step.as<float>()[kBiasCorrection1] = static_cast<float>(1 - std::pow(params.beta1, t));
  step.as<float>()[kBiasCorrection2] = static_cast<float>(1 - std::pow(params.beta2, t));
  return absl::OkStatus();
}

absl::Status CpuKernels::adamw(Stream&, const AdamWParams& params, In grad, In scale, In step, InOut master,
                               InOut exp_avg, InOut exp_avg_sq, Out weight) {
  if (absl::Status s = check_adamw(grad, scale, step, master, exp_avg, exp_avg_sq, weight); !s.ok()) return s;
  const float* scalars = step.as<float>();
  const float rate = scalars[kLearningRate];
  const Step constants{params.beta1,
                       params.beta2,
                       params.epsilon,
                       scale.as<float>()[0],
                       rate * params.weight_decay,
                       rate / scalars[kBiasCorrection1],
                       1.0f / scalars[kBiasCorrection2]};
  parallel_pieces(grad.elements(), kElementPiece, [&](int64_t first, int64_t last) {
    const int64_t n = last - first;
    float* values = master.as<float>() + first;
    if (constants.scale != 0) {
      update_piece(constants, grad.as<float>() + first, values, exp_avg.as<float>() + first,
                   exp_avg_sq.as<float>() + first, n);
    }
    // Also where nothing changed: `weight` is written, never read, so it may hold anything.
    if (weight.absent()) return;
    with_type(weight.dtype, [&](auto type) { round_weights(values, weight.as<decltype(type)>() + first, n); });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
