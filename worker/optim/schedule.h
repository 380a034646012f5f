// The learning rate of a step.
#pragma once

#include <cstdint>

#include "telar/v1/spec.pb.h"

namespace telar::optim {

// step: 1 is the first, `schedule.steps` the last. Warm-up rises linearly: peak * step / warmup_steps. Then
//   COSINE  min + (peak - min) (1 + cos(pi x)) / 2,  x from 0 at the end of warm-up to 1 at the last step
//   LINEAR  peak + (min - peak) x
//   WSD     peak, and over the last decay_steps min + (peak - min) (1 - sqrt(x))
// with min = peak * min_ratio. A pure function of the step: nothing to save, nothing to restore wrongly.
double learning_rate(const v1::ScheduleSpec& schedule, double peak, uint64_t step);

}  // namespace telar::optim
