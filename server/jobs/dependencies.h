// Whether what a job waits for has happened.
#pragma once

#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

enum class Dependence {
  kWaits,
  kHolds,
  kFails,  // It cannot hold any more.
};

Dependence check(const v1::Dependency& dependency, const v1::Job& job);

// "job projects/default/jobs/x is RUNNING, and has to end as SUCCEEDED"
std::string describe(const v1::Dependency& dependency, const v1::Job& job);

}  // namespace telar::server::jobs
