// Steps of a run as traces in its folder: docs/formats/trace.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "telar/v1/rank.pb.h"
#include "worker/engine/op_timer.h"
#include "worker/train/replica.h"

namespace telar::train {

// Does nothing for steps that the spec does not name.
class StepTrace {
 public:
  explicit StepTrace(const v1::RankPlan& plan) : plan_(plan) {}

  // Before replica.submit_step() of step number `step`.
  absl::Status begin(uint64_t step, Replica& replica, backend::Device& device);
  // Behind replica.finish_step() of it: writes the file and logs the figures. `group_names` by engine::GroupId.
  absl::Status finish(uint64_t step, const Replica& replica, const std::vector<std::string>& group_names);

 private:
  bool names(uint64_t step) const;

  const v1::RankPlan& plan_;
  std::map<uint64_t, std::unique_ptr<engine::OpTimer>> timers_;  // Of the steps that run.
};

}  // namespace telar::train
