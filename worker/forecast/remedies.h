// One change at a time to a job that does not fit: what each would save, and what it costs.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"

namespace telar::forecast {

// Forecasts of `forecast`'s job with one knob turned; those that save something, most saved first. Each has as level
// NOTE where the job then fits, else WARNING.
std::vector<v1::Advice> remedies(const v1::Forecast& forecast, const v1::ClusterShape& cluster);

}  // namespace telar::forecast
