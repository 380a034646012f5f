// `parallel: auto`: the layouts that a job could have, those that fit, and the fastest of them.
//
// Degrees of tensor parallelism inside the NVLink domain, pipeline ranks and schedules, ZeRO stages, micro-batches and
// recomputation are enumerated. Each candidate is estimated from few recordings: of one layer and of the model's ends
// with so many tensor ranks, tokens a micro-batch and so much recomputed. The best of them are then forecast as a
// given layout is (forecast.h), whose figures decide. Whatever the spec fixes stays. Equal input gives equal output.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"

namespace telar::forecast {

struct SearchOptions {
  size_t best = 10;   // Layouts that are wanted.
  size_t exact = 14;  // Layouts that are forecast for them.
};

// `spec` as a user writes it, with parallel.auto; resources.devices is set. `cluster` complete. INVALID_ARGUMENT: what
// is wrong with the spec whatever its layout. Without any layout that fits `best` is empty and `dropped` says why.
absl::StatusOr<v1::LayoutSearch> search(const v1::JobSpec& spec, const v1::ClusterShape& cluster,
                                        const SearchOptions& options = {});

}  // namespace telar::forecast
