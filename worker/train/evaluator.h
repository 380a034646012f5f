// Loss on the held-out rows.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/train/dataset.h"
#include "worker/train/replica.h"

namespace telar::train {

struct EvalResult {
  double loss = 0;  // Mean over the valid targets.
  uint64_t tokens = 0;
  bool stopped = false;  // Some rank asked to stop before the last batch: there is no loss.
  // The same of each source, in the order of `parts`.
  struct Part {
    std::string source;
    double loss = 0;
    uint64_t tokens = 0;
  };
  std::vector<Part> parts = {};
};

// Rows shared out over the replicas; every replica gets the result. All replicas must call it at the same point.
// Whoever's `stop` turns true stops all of them behind the same batch.
absl::StatusOr<EvalResult> evaluate(Replica& replica, const std::vector<EvalPart>& parts,
                                    const std::atomic<bool>& stop);

// What is told of an evaluation behind `step`; logs it, too.
v1::EvalReport report_of(const EvalResult& result, uint64_t step, double seconds);

}  // namespace telar::train
