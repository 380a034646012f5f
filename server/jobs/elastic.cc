#include "server/jobs/elastic.h"

#include "absl/strings/str_cat.h"
#include "server/jobs/condition.h"
#include "worker/plan/resolve_elastic.h"

namespace telar::server::jobs {
namespace {

constexpr const char* kShrunk = "SHRUNK";

uint32_t of_a_replica(const v1::JobSpec& spec) { return spec.parallel().tensor() * spec.parallel().pipeline(); }

}  // namespace

std::vector<v1::JobSpec> shapes(const JobRecord& record, uint32_t most_devices) {
  std::vector<v1::JobSpec> all;
  const v1::JobSpec& spec = record.job().spec();
  for (const uint32_t replicas : plan::replica_counts(spec)) {
    if (replicas * of_a_replica(spec) <= most_devices) all.push_back(plan::with_replicas(spec, replicas));
  }
  return all;
}

uint32_t least_devices(const JobRecord& record) {
  const v1::JobSpec& spec = record.job().spec();
  return plan::replica_counts(spec).back() * of_a_replica(spec);
}

v1::JobSpec current_shape(const JobRecord& record) {
  const v1::Job& job = record.job();
  if (!job.spec().parallel().has_elastic() || job.data_parallel() == 0) return job.spec();
  return plan::with_replicas(job.spec(), job.data_parallel());
}

void note_shape(Draft& draft, const v1::JobSpec& shape) {
  v1::Job& job = draft.job();
  const uint32_t replicas = shape.parallel().data(), wanted = job.spec().parallel().data();
  job.set_data_parallel(replicas);
  if (replicas >= wanted) {
    clear_condition(job, kShrunk);
  } else {
    set_condition(job, kShrunk,
                  absl::StrCat("runs with ", replicas, " of ", wanted, " replicas: there were no devices for more"),
                  draft.now());
  }
  draft.touch();
}

void grow(Draft& draft, uint32_t replicas) {
  Failure* failure = draft.record().add_failures();
  failure->set_node(draft.job().placement(0).node());
  failure->set_message(
      absl::StrCat("there are devices for ", replicas, " replicas instead of ", draft.job().data_parallel()));
  draft.touch();
}

}  // namespace telar::server::jobs
