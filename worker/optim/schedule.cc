#include "worker/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace telar::optim {

double learning_rate(const v1::ScheduleSpec& schedule, double peak, uint64_t step) {
  const uint64_t warmup = schedule.warmup_steps();
  if (step <= warmup && warmup > 0) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  const double low = peak * schedule.min_ratio();
  // Share of the way from `from` to the last step.
  const auto progress = [&](uint64_t from) {
    if (schedule.steps() <= from) return 1.0;
    const double x = static_cast<double>(step - std::min(step, from)) / static_cast<double>(schedule.steps() - from);
    return std::min(x, 1.0);
  };
  switch (schedule.kind()) {
    case v1::ScheduleSpec::COSINE:
      return low + (peak - low) * (1 + std::cos(std::numbers::pi * progress(warmup))) / 2;
    case v1::ScheduleSpec::LINEAR:
      return peak + (low - peak) * progress(warmup);
    case v1::ScheduleSpec::WSD: {
      const uint64_t start = schedule.steps() - std::min(schedule.steps(), schedule.decay_steps());
      if (step <= start) return peak;
      return low + (peak - low) * (1 - std::sqrt(progress(start)));
    }
    default:
      return peak;
  }
}

}  // namespace telar::optim
