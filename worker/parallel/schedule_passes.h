// What turns a list of computations into one that can be run, and checks it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/schedule.h"
#include "worker/parallel/schedule_memory.h"

namespace telar::parallel {

struct LoweredSchedule {
  Schedule schedule;                // With SEND and RECV.
  std::vector<Transfer> transfers;  // Every message, in one order for all ranks, the global order of communication.
};

// Adds SEND and RECV between neighbouring stages on different ranks. All ranks are walked together, an action a rank
// and round; when an action that another rank waits for is placed, its SEND follows at once, and the RECV takes its
// place on the other rank at that moment (PyTorch's rule). So the order of placing is one order of all transfers that
// every rank's list agrees with, and no rank can wait for another in a circle, even if each SEND and RECV blocks.
//
// A schedule that has SEND or RECV already is kept as it is, and gets its global order.
// INVALID_ARGUMENT: check_shape; FAILED_PRECONDITION names, for every rank that cannot go on, its action and what it
// waits for.
absl::StatusOr<LoweredSchedule> lower(const Schedule& schedule);

// Makes one B of an I that the W of the same stage and micro-batch follows directly.
Schedule merge_backward(const Schedule& schedule);

struct ScheduleLimits {
  // Stage activations alive at once on a rank; 0: no limit.
  int until_input_grad = 0;
  int until_weight_grad = 0;
  // Bytes alive at once on a rank; 0: no limit. `activations` has an element for each stage then.
  int64_t bytes = 0;
  std::vector<ActivationBytes> activations;
};

struct ScheduleProblem {
  int rank = -1;       // -1: of the whole schedule.
  int entry = -1;      // Of the rank's list, from 0; -1: of what is not there.
  std::string action;  // As text; empty: of the whole rank.
  std::string rule;    // What is wrong with it.
};

std::string to_text(const ScheduleProblem& problem);  // "rank 0, 0B3 (entry 7): ..."

// Everything that is wrong with a schedule, with or without transfers:
// - a stage's action on another rank, a rank without a stage;
// - a stage and micro-batch without exactly one F and one B, or one I and one W;
// - B or I before F, W before I, anything before what it needs from a stage of the same rank, REDUCE_GRAD before its
//   stage's last B or W;
// - with transfers: a SEND or RECV that is missing, there twice, without its other side, before what it sends or after
//   what needs it, or between stages of one rank;
// - a deadlock when every transfer waits for both of its sides, with one queue a rank and with one a pair of ranks.
//   One queue a rank gets to its end exactly if the orders of transfers of all ranks together have no circle;
// - a memory limit passed.
// A deadlock is looked for only where all before it is right.
std::vector<ScheduleProblem> find_problems(const Schedule& schedule, const ScheduleLimits& limits);

// INVALID_ARGUMENT with all the problems, the first 20 of them in full.
absl::Status validate(const Schedule& schedule, const ScheduleLimits& limits = {});

}  // namespace telar::parallel
