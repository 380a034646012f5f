// Runs a lowered schedule on paper: queues in order, transfers that wait for both of their sides.
//
// A transfer takes both ends at once (rendezvous): it starts when the SEND and the RECV are each the next of their
// queue, and what is sent has been computed. Links share no bandwidth, and a queue that moves data takes nothing from
// compute.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker/parallel/schedule.h"
#include "worker/parallel/schedule_index.h"

namespace telar::parallel {

enum class QueueRule {
  kOnePerRank,  // Everything of a rank is one queue: a SEND or RECV blocks what follows it.
  kOnePerPeer,  // Compute is one queue, and the transfers with each other rank, both ways, are one more each.
};

struct SchedulePosition {
  int rank = 0;
  int entry = 0;
};

struct ActionTime {
  double start = 0;
  double end = -1;  // Negative: never ran.

  bool ran() const { return end >= 0; }
};

struct ScheduleWalk {
  std::vector<std::vector<ActionTime>> times;  // By rank and entry.
  std::vector<Transfer> transfers;             // In an order in which they can run one after the other.
  std::vector<SchedulePosition> stuck;         // The heads of the queues that could not be emptied; none: no deadlock.
};

// `seconds` of a transfer are asked of its SEND. check_shape must be OK; transfers off the ends of the pipeline and
// actions that wait for what is not there get stuck.
ScheduleWalk walk(const Schedule& schedule, const ScheduleIndex& index, QueueRule rule,
                  const std::function<double(const Action&)>& seconds);

// Why an action that is stuck cannot run: "waits for 0RECV_B1 (entry 5)".
std::string why_stuck(const Schedule& schedule, const ScheduleIndex& index, const ScheduleWalk& walk,
                      SchedulePosition position);

// The same for all that is stuck: "rank 0, 0B1 (entry 3) waits for ...; rank 1, ...".
std::string why_stuck(const Schedule& schedule, const ScheduleIndex& index, const ScheduleWalk& walk);

}  // namespace telar::parallel
