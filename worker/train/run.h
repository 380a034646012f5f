// One run of one rank, from its plan to its end: open the device, join the gang, restore or initialise, train,
// evaluate, save.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/train/event_log.h"
#include "worker/train/replica.h"

namespace telar::train {

struct RunOutcome {
  uint64_t step = 0;         // Steps done.
  bool interrupted = false;  // Stopped on request before the last step; the state is saved.
};

// `stop` may turn true at any time (SIGTERM): all ranks then leave behind the same step, saved. Errors carry a failure
// class (failure.h).
absl::StatusOr<RunOutcome> run(const v1::RankPlan& plan, EventLog& events, const std::atomic<bool>& stop,
                               Replica::Execution execution);

}  // namespace telar::train
