// One run of one rank, from its plan to its end: open the device, join the gang, restore or initialise, train,
// evaluate, save.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/checkpoint/file_system.h"
#include "worker/train/event_log.h"
#include "worker/train/replica.h"
#include "worker/train/step_trace.h"

namespace telar::train {

struct RunOutcome {
  uint64_t step = 0;         // Steps done.
  bool interrupted = false;  // Stopped on request before all was done; the state is saved.
};

// What the program that runs a rank sees to.
struct RunSeams {
  // Asked once, when all is ready for the first step: false ends the run there, interrupted. Up to then there is
  // nothing to save, and the process may end at any moment. None: whether `stop` is still false.
  std::function<bool()> may_begin;
  checkpoint::FileSystem* checkpoints = nullptr;  // None: the operating system's.
  std::string flight_path;                        // File for worker/flight. Empty: none.
  StepTrace::Seams trace;
};

// `stop` may turn true at any time (SIGTERM): all ranks then leave behind the same step, saved. An evaluation or sample
// that is under way is given up behind the batch or token; the resumed run does it again. Errors carry a failure class
// (failure.h).
absl::StatusOr<RunOutcome> run(const v1::RankPlan& plan, EventLog& events, const std::atomic<bool>& stop,
                               Replica::Execution execution, const RunSeams& seams = {});

}  // namespace telar::train
