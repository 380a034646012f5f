// What to think twice about in a layout, and what to change where it does not fit.
#pragma once

#include <vector>

#include "telar/v1/forecast.pb.h"

namespace telar::forecast {

inline constexpr double kGiB = 1 << 30;

// `forecast` is complete but for its advice.
std::vector<v1::Advice> advise(const v1::Forecast& forecast, const v1::ClusterShape& cluster);

}  // namespace telar::forecast
