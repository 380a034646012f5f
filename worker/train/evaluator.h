// Loss on the held-out windows.
#pragma once

#include "absl/status/statusor.h"
#include "worker/data/sampler.h"
#include "worker/train/replica.h"

namespace telar::train {

struct EvalResult {
  double loss = 0;  // Mean over the valid targets.
  uint64_t tokens = 0;
};

// The first min(spec.eval.sequences, windows) windows, shared out over the replicas; every replica gets the result.
// All replicas must call it at the same point.
absl::StatusOr<EvalResult> evaluate(Replica& replica, const data::Sampler& sampler);

}  // namespace telar::train
