// The part of resolve() that is about 8-bit floats, and what a resolved spec says of them.
#pragma once

#include <vector>

#include "telar/v1/spec.pb.h"
#include "worker/plan/problems.h"

namespace telar::plan {

// Behind model, parallel and batch.
void resolve_fp8(v1::JobSpec& spec, Problems& problems);

// Of a resolved spec: which layers multiply in FP8. Empty unless precision.compute is fp8.
std::vector<bool> fp8_layers(const v1::JobSpec& spec);

}  // namespace telar::plan
