// Jobs that may run with fewer replicas than they ask for, or more: the part of resolve() for spec.parallel.elastic,
// and what such a job's spec is for a number of replicas.
#pragma once

#include <cstdint>
#include <vector>

#include "telar/v1/spec.pb.h"
#include "worker/plan/problems.h"

namespace telar::plan {

// Fills in and checks spec.parallel.elastic. Behind parallel and batch.
void resolve_elastic(v1::JobSpec& spec, Problems& problems);

// The numbers of replicas that a resolved spec may run with, the largest first; parallel.data alone where it is not
// elastic. Each divides batch.global into whole micro-batches of batch.micro, and is made of whole shard groups.
std::vector<uint32_t> replica_counts(const v1::JobSpec& spec);

// The spec for one of these numbers: parallel.data and shard, resources.devices. The global batch and the micro-batch
// stay, so that a step is the same sum over the same samples; only more or fewer micro-batches are a replica's.
v1::JobSpec with_replicas(const v1::JobSpec& spec, uint32_t replicas);

}  // namespace telar::plan
