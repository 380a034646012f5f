// Whether a request to create a job can be accepted, and the complete spec that follows from it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/errors.h"
#include "common/roots.h"
#include "server/cluster/cluster.h"
#include "server/jobs/queue.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

// What a spec is checked against, besides the cluster.
struct SchedulingContext {
  const std::vector<QueueConfig>* queues = nullptr;
  const Roots* roots = nullptr;                                // What its paths may name.
  std::function<const v1::Job*(const std::string&)> find_job;  // By full name; null: there is none.
};

// Completes request.spec by its defaults. INVALID_ARGUMENT with every violation at once when the spec can never work;
// FAILED_PRECONDITION (DEPENDENCY_FAILED) when a job that it depends on has ended otherwise; FAILED_PRECONDITION when
// this cluster could not hold it even empty, unless resources.wait_for_capacity: INSUFFICIENT_DEVICES when it has too
// few, INSUFFICIENT_ROOM when tensor-parallel groups find no NVLink domain wide enough, INSUFFICIENT_NODES when labels
// and exclusions leave too few, QUOTA_EXCEEDED when its queue may never have as many.
absl::Status admit(v1::CreateJobRequest& request, const cluster::Cluster& cluster, const SchedulingContext& context);

// The two halves of it: all that is wrong with request.spec, which is completed; whether a complete one has room.
void check_spec(v1::CreateJobRequest& request, const cluster::Cluster& cluster, const SchedulingContext& context,
                std::vector<Violation>& found);
absl::Status check_room(const v1::JobSpec& spec, const cluster::Cluster& cluster, const SchedulingContext& context);

// Of the above, what concerns queues and dependencies; admission_scheduling.cc. Dependencies get their full names.
void check_scheduling(v1::JobSpec& spec, const std::string& project, const SchedulingContext& context,
                      std::vector<Violation>& found);
absl::Status check_dependencies(const v1::JobSpec& spec, const SchedulingContext& context);
std::string too_small_quota(const v1::JobSpec& spec, const SchedulingContext& context);
std::string too_few_nodes(const v1::JobSpec& spec, const cluster::Cluster& cluster);

// [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?
bool label(const std::string& text);

// "projects/default" for an empty parent; empty when it is no such name.
std::string project_of(const std::string& parent);

// "CPU", "GPU"
std::string kind_name(v1::ResourceSpec::Kind kind);

}  // namespace telar::server::jobs
