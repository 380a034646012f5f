// What a job trains on: the part of resolve() for spec.data.
#pragma once

#include "telar/v1/spec.pb.h"
#include "worker/plan/problems.h"

namespace telar::plan {

// Fills in and checks spec.data, and that documents are known where it asks for them. Reads the completed tokenizer.
void resolve_data(v1::JobSpec& spec, Problems& problems);

}  // namespace telar::plan
