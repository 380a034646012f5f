// Whether a request to create a job can be accepted, and the complete spec that follows from it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/roots.h"
#include "server/cluster/cluster.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

// Completes request.spec by its defaults. INVALID_ARGUMENT with every violation at once when the spec can never work;
// FAILED_PRECONDITION when this cluster could not hold it even empty, unless resources.wait_for_capacity:
// INSUFFICIENT_DEVICES when it has too few, INSUFFICIENT_ROOM when tensor-parallel groups find no NVLink domain wide
// enough.
absl::Status admit(v1::CreateJobRequest& request, const cluster::Cluster& cluster, const Roots& roots = {});

// "projects/default" for an empty parent; empty when it is no such name.
std::string project_of(const std::string& parent);

// "CPU", "GPU"
std::string kind_name(v1::ResourceSpec::Kind kind);

// Why a job waits: never-now and not-now told apart.
std::string why_waiting(uint32_t devices, v1::ResourceSpec::Kind kind, const cluster::Cluster::Count& count);

}  // namespace telar::server::jobs
