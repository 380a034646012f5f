// Steps of a run that are timed op by op: those that the spec names become traces in the run's folder
// (docs/formats/trace.md), of one in trace.account_every the account is told.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/engine/op_timer.h"
#include "worker/engine/trace.h"
#include "worker/parallel/groups.h"
#include "worker/train/replica.h"

namespace telar::train {

// Does nothing for other steps than those. Threads: the one that submits steps.
class StepTrace {
 public:
  // `groups` by engine::GroupId; must outlive it.
  StepTrace(const v1::RankPlan& plan, const std::vector<parallel::Group>& groups, bool pipeline)
      : plan_(plan), groups_(groups), pipeline_(pipeline) {}

  // From here on accounts are taken: the run's steps begin behind `start_step`, the same on all ranks. Its executor
  // must be one that can be observed.
  void account_from(uint64_t start_step) { start_step_ = start_step; }
  // Before replica.submit_step() of step number `step`.
  absl::Status begin(uint64_t step, Replica& replica, backend::Device& device);
  struct Accounted {
    v1::StepAccount told;
    double waiting_share = 0;  // Of the device's time: engine::waiting_share().
  };
  // Behind replica.finish_step() of it: writes the file and logs the figures, or gives them; nothing of other steps.
  absl::StatusOr<std::optional<Accounted>> finish(uint64_t step, const Replica& replica);

 private:
  bool is_traced(uint64_t step) const;
  bool is_accounted(uint64_t step) const;
  absl::Status write(const engine::Trace& trace) const;

  const v1::RankPlan& plan_;
  const std::vector<parallel::Group>& groups_;
  const bool pipeline_;
  std::optional<uint64_t> start_step_;
  std::map<uint64_t, std::unique_ptr<engine::OpTimer>> timers_;  // Of the steps that run.
};

}  // namespace telar::train
