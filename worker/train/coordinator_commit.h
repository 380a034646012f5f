// The coordinator's Checkpoints service as a checkpoint::Committer.
#pragma once

#include <memory>

#include "telar/v1/rank.pb.h"
#include "worker/checkpoint/commit.h"

namespace telar::train {

// For the plan's job and epoch.
std::unique_ptr<checkpoint::PatientCommitter> dial_committer(const v1::RankPlan& plan);

}  // namespace telar::train
