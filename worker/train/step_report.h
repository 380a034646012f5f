// What a rank tells of a step that is over.
#pragma once

#include "telar/v1/rank.pb.h"
#include "worker/engine/account.h"
#include "worker/engine/trace.h"
#include "worker/parallel/groups.h"
#include "worker/train/pace.h"
#include "worker/train/replica.h"

namespace telar::train {

// What stays the same from step to step.
struct StepFacts {
  double flops_per_token = 0;
  double peak_flops = 0;  // Of this device; 0: not known.
};

// Of step `step`, by which the run has consumed `samples`.
v1::StepReport step_report(const v1::RankPlan& plan, const StepFacts& facts, uint64_t step, uint64_t samples,
                           const StepResult& result, const Pace& pace);

// `groups` by engine::GroupId, for names and sizes. The pipeline's part is there where the job has one.
v1::StepAccount step_account(const engine::Account& account, const engine::Trace& trace, bool pipeline,
                             const std::vector<parallel::Group>& groups);

}  // namespace telar::train
