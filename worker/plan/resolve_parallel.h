// How a job is laid out over its ranks: the part of resolve() for spec.parallel.
#pragma once

#include "telar/v1/spec.pb.h"
#include "worker/plan/problems.h"

namespace telar::plan {

// Fills in and checks spec.parallel, and that its degrees multiply to resources.devices. Reads the completed model.
void resolve_parallel(v1::JobSpec& spec, Problems& problems);

// The schedule that the user wrote: that it can be read, is for this job's ranks, stages and micro-batches, and works.
// Behind the batch's sizes.
void resolve_custom_schedule(const v1::JobSpec& spec, Problems& problems);

}  // namespace telar::plan
