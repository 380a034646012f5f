// `parallel: auto` and `precision.compute: auto` of a job that is submitted: the cluster as a forecast sees it, and
// what follows.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

// Of the devices of a kind (unspecified: GPUs if there are any) on these nodes, with the least memory that one of them
// has and the built-in rates of their model. FAILED_PRECONDITION (NO_RATES): there are none, or no such device.
absl::StatusOr<v1::ClusterShape> cluster_shape(const std::vector<v1::Node>& nodes, v1::ResourceSpec::Kind kind);

bool has_auto(const v1::JobSpec& spec);

// Gives `spec` the fastest layout that fits and the precision that pays, each in place of its auto, and returns what
// was chosen and why, for people. Pure and equal for equal input, but takes seconds for large jobs: call it without
// locks. INVALID_ARGUMENT: the spec is wrong, or no layout fits; FAILED_PRECONDITION as of cluster_shape(), where a
// layout is wanted: the precision does without a forecast.
absl::StatusOr<std::string> choose_autos(v1::JobSpec& spec, const std::vector<v1::Node>& nodes);

}  // namespace telar::server::jobs
