// Loss on the held-out windows.
#pragma once

#include <atomic>

#include "absl/status/statusor.h"
#include "worker/data/sampler.h"
#include "worker/train/replica.h"

namespace telar::train {

struct EvalResult {
  double loss = 0;  // Mean over the valid targets.
  uint64_t tokens = 0;
  bool stopped = false;  // Some rank asked to stop before the last batch: there is no loss.
};

// The first min(spec.eval.sequences, windows) windows, shared out over the replicas; every replica gets the result.
// All replicas must call it at the same point. Whoever's `stop` turns true stops all of them behind the same batch.
absl::StatusOr<EvalResult> evaluate(Replica& replica, const data::Sampler& sampler, const std::atomic<bool>& stop);

}  // namespace telar::train
