// How text becomes tokens: the part of resolve() for spec.tokenizer.
#pragma once

#include "telar/v1/spec.pb.h"
#include "worker/plan/problems.h"

namespace telar::plan {

// Fills in and checks spec.tokenizer, which depends on spec.data.format. With PREPARED data its kind may stay
// unspecified: that of the data. The file itself is on the workers, and not looked at.
void resolve_tokenizer(v1::JobSpec& spec, Problems& problems);

}  // namespace telar::plan
