// `precision.compute: auto`: whether a job is in FP8, by the forecasts of both.
//
// FP8 has to be there (the device, the recipe, extents that its products take) and to pay: small products gain less
// than quantising their operands costs, and a forecast that is off by a few percent must not make a job slower.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"
#include "worker/forecast/search.h"
#include "worker/plan/resolve.h"

namespace telar::forecast {

// FP8's step must be forecast to be shorter by this share of the other's. Of jobs that were measured in both, the
// forecasts' ratio was off by up to 4 %: docs/plans.md.
inline constexpr double kFp8Margin = 0.05;

// `spec` with the default precision of a kind of device in place of its auto, and nothing that goes with FP8 only.
v1::JobSpec without_fp8(v1::JobSpec spec, v1::ResourceSpec::Kind kind);

// What is wrong with a spec with precision.compute auto whatever it becomes; with parallel.auto, whatever the layout.
std::vector<plan::SpecProblem> check_auto_precision(const v1::JobSpec& spec, v1::ResourceSpec::Kind kind);

// The forecast in the precision that `spec`'s auto becomes on `cluster`; its `precision` says why. `spec` as a user
// writes it, with a layout and nothing wrong by the above; `cluster` complete. Errors as forecast()'s.
absl::StatusOr<v1::Forecast> forecast_auto_precision(const v1::JobSpec& spec, const v1::ClusterShape& cluster);
// The same with parallel.auto: each precision has the fastest layout of its own.
absl::StatusOr<v1::LayoutSearch> search_auto_precision(const v1::JobSpec& spec, const v1::ClusterShape& cluster,
                                                       const SearchOptions& options = {});

}  // namespace telar::forecast
