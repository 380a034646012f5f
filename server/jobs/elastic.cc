#include "server/jobs/elastic.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/jobs/conditions.h"
#include "worker/plan/resolve_elastic.h"

namespace telar::server::jobs {
namespace {

constexpr const char* kShrunk = "SHRUNK";

uint32_t of_a_replica(const v1::JobSpec& spec) {
  return std::max(1u, spec.parallel().tensor()) * std::max(1u, spec.parallel().pipeline());
}

}  // namespace

std::vector<cluster::GangShape> shapes_of(const v1::JobSpec& spec) {
  v1::JobSpec layout;  // Only that: a whole spec may be long.
  *layout.mutable_parallel() = spec.parallel();
  std::vector<cluster::GangShape> shapes;
  for (const uint32_t replicas : plan::replica_counts(spec)) {
    shapes.push_back(cluster::shape_of(plan::with_replicas(layout, replicas)));
  }
  return shapes;
}

uint32_t most_ranks(const v1::JobSpec& spec) { return plan::replica_counts(spec).front() * of_a_replica(spec); }

v1::JobSpec least_shape(const v1::JobSpec& spec) {
  return plan::with_replicas(spec, plan::replica_counts(spec).back());
}

uint32_t replicas_of(const v1::JobSpec& spec, size_t ranks) {
  return static_cast<uint32_t>(ranks / of_a_replica(spec));
}

v1::JobSpec current_shape(const JobRecord& record) {
  const v1::Job& job = record.job();
  if (!job.spec().parallel().has_elastic() || job.data_parallel() == 0) return job.spec();
  return plan::with_replicas(job.spec(), job.data_parallel());
}

void note_shape(Draft& draft, size_t ranks) {
  v1::Job& job = draft.job();
  const uint32_t replicas = replicas_of(job.spec(), ranks), wanted = job.spec().parallel().data();
  job.set_data_parallel(replicas);
  draft.touch();
  if (replicas >= wanted) return clear_condition(draft, kShrunk);
  set_condition(draft, kShrunk,
                absl::StrCat("runs with ", replicas, " of ", wanted, " replicas: there were no devices for more"));
}

}  // namespace telar::server::jobs
