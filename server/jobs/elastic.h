// Jobs whose number of replicas follows what the cluster has.
#pragma once

#include <cstdint>
#include <vector>

#include "server/cluster/placement.h"
#include "server/jobs/draft.h"

namespace telar::server::jobs {

// What the job may be placed as, the largest first: one for each number of replicas that parallel.elastic allows. Wants
// a resolved spec, as do all below.
std::vector<cluster::GangShape> shapes_of(const v1::JobSpec& spec);
// Of the largest of them: no epoch of the job has more ranks.
uint32_t most_ranks(const v1::JobSpec& spec);
// The spec as the least that it can do with.
v1::JobSpec least_shape(const v1::JobSpec& spec);
// Which of them has so many ranks.
uint32_t replicas_of(const v1::JobSpec& spec, size_t ranks);

// The spec that the current epoch runs.
v1::JobSpec current_shape(const JobRecord& record);

// The new epoch has so many ranks: for current_shape(), and for people (Job.data_parallel, condition SHRUNK).
void note_shape(Draft& draft, size_t ranks);

}  // namespace telar::server::jobs
