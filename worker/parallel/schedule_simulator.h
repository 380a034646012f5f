// Forecasts the time and memory of a schedule.
//
// The model: each rank computes its actions in order. Transfers run beside compute, in one in-order queue a pair of
// ranks; each waits for both of its sides and for what it sends, then takes latency + bytes / bandwidth. Queues share
// no bandwidth.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/parallel/schedule.h"
#include "worker/parallel/schedule_memory.h"

namespace telar::parallel {

// Seconds of a stage's actions on one micro-batch. B takes input_grad + weight_grad.
struct StageCost {
  double forward = 0;
  double input_grad = 0;
  double weight_grad = 0;
};

struct ScheduleCosts {
  std::vector<StageCost> stages;  // One for each stage.
  double latency = 0;             // Seconds a transfer.
  double transfer_bytes = 0;      // Bytes a transfer.
  double bytes_per_second = std::numeric_limits<double>::infinity();
  std::vector<ActivationBytes> activations;  // One for each stage, or empty: bytes are then not counted.
};

struct RankForecast {
  double busy = 0;  // Seconds of compute.
  // Seconds without compute from time 0 to the makespan, and from the rank's first action to its last (the measure of
  // the zero-bubble papers, which leaves out the skew of filling and draining).
  double idle = 0;
  double own_idle = 0;
  // idle = warmup_idle + steady_idle + cooldown_idle: before the rank's first backward starts, between, and after both
  // its last forward has ended and its first backward has started.
  double warmup_idle = 0;
  double steady_idle = 0;
  double cooldown_idle = 0;
  // The part of idle in which the rank waits for something that another rank has ready: it is in the queue or on the
  // wire. The rest waits for somebody's compute, or for nothing more.
  double exposed_communication = 0;
  int peak_until_input_grad = 0;  // Stage activations alive at once.
  int peak_until_weight_grad = 0;
  int64_t peak_bytes = 0;
};

struct TimedAction {  // F, B, I or W
  int rank = 0;
  Action action;
  double start = 0;
  double end = 0;
};

struct TimedTransfer {
  Transfer transfer;
  double start = 0;
  double end = 0;
};

struct ScheduleForecast {
  double makespan = 0;         // Seconds from the first action to the end of the last.
  double bubble_fraction = 0;  // Mean over ranks of idle / makespan; (p-1) / (m+p-1) for 1f1b.
  std::vector<RankForecast> ranks;
  std::vector<TimedAction> actions;      // By rank, then by time.
  std::vector<TimedTransfer> transfers;  // By start.
};

// Compute-only schedules are lowered first. INVALID_ARGUMENT: check_shape, costs that do not fit the stages or are
// negative. FAILED_PRECONDITION: a deadlock, with every action that hangs.
absl::StatusOr<ScheduleForecast> simulate(const Schedule& schedule, const ScheduleCosts& costs);

// JSON in the Trace Event Format of chrome://tracing and Perfetto: a process a rank, its compute in thread 0 and its
// transfers with rank k in thread k + 1. Times in microseconds.
std::string to_chrome_trace(const ScheduleForecast& forecast);

}  // namespace telar::parallel
