// The parts of resolve() that say when and where a job runs.
#pragma once

#include "telar/v1/spec.pb.h"
#include "worker/plan/problems.h"

namespace telar::plan {

// Fills in the defaults of spec.scheduling and checks it, and what is left of spec.array in a task of one.
void resolve_scheduling(v1::JobSpec& spec, Problems& problems);

}  // namespace telar::plan
