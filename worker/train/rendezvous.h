// The KeyValueStore through which a gang's ranks find each other: the coordinator's Rendezvous service, fenced by the
// allocation epoch. Used while groups are formed, not during training.
#pragma once

#include <memory>

#include "telar/v1/rank.pb.h"
#include "worker/backend/collectives.h"

namespace telar::train {

std::unique_ptr<backend::KeyValueStore> dial_rendezvous(const v1::RankPlan& plan);

}  // namespace telar::train
