// Job.conditions: one of a type at most.
#pragma once

#include <string>

#include "server/cluster/times.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

inline void clear_condition(v1::Job& job, const std::string& type) {
  auto& all = *job.mutable_conditions();
  for (int i = all.size(); i-- > 0;) {
    if (all[i].type() == type) all.DeleteSubrange(i, 1);
  }
}

// Replaces the one of that type.
inline void set_condition(v1::Job& job, const std::string& type, const std::string& message, Clock::Wall now) {
  clear_condition(job, type);
  v1::Condition& condition = *job.add_conditions();
  condition.set_type(type);
  condition.set_message(message);
  *condition.mutable_time() = cluster::to_timestamp(now);
}

}  // namespace telar::server::jobs
