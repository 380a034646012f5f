// What a job needs and how long it takes, before it runs: its programs are recorded and planned as ranks do it, so
// memory is exact; each op is costed by its shape, and the step is replayed on paper (replay.h).
#pragma once

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"

namespace telar::forecast {

struct ForecastOptions {
  // Steps of more micro-batches than the schedule needs to come to rhythm are recorded for fewer, at two lengths, and
  // extrapolated: then memory is that of the longer one, which holds as many activations. False: always all of them.
  bool may_shorten = true;
};

// `resolved` without problems; `cluster` complete. INVALID_ARGUMENT: the cluster has too few devices.
absl::StatusOr<v1::Forecast> forecast(const v1::JobSpec& resolved, const v1::ClusterShape& cluster,
                                      const ForecastOptions& options = {});

}  // namespace telar::forecast
