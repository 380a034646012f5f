// Jobs whose number of replicas follows what the cluster has.
#pragma once

#include <cstdint>
#include <vector>

#include "server/jobs/draft.h"

namespace telar::server::jobs {

// What the job may be placed as on so many devices, the largest first: its spec, for each number of replicas that
// parallel.elastic allows.
std::vector<v1::JobSpec> shapes(const JobRecord& record, uint32_t most_devices = UINT32_MAX);
// Of the smallest.
uint32_t least_devices(const JobRecord& record);

// The spec that the current epoch runs.
v1::JobSpec current_shape(const JobRecord& record);

// The job was placed as this: for current_shape(), and for people (Job.data_parallel, condition SHRUNK).
void note_shape(Draft& draft, const v1::JobSpec& shape);

// Ends the epoch, with its state saved, so that the next one may be placed larger. Costs no budget.
void grow(Draft& draft, uint32_t replicas);

}  // namespace telar::server::jobs
