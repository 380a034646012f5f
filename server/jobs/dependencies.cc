#include "server/jobs/dependencies.h"

#include "absl/strings/str_cat.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {

Dependence check(const v1::Dependency& dependency, const v1::Job& job) {
  const bool over = terminal(job.state());
  switch (dependency.condition()) {
    case v1::Dependency::STARTED:
      if (job.has_start_time()) return Dependence::kHolds;
      return over ? Dependence::kFails : Dependence::kWaits;
    case v1::Dependency::ENDED:
      return over ? Dependence::kHolds : Dependence::kWaits;
    default:
      if (job.state() == v1::Job::SUCCEEDED) return Dependence::kHolds;
      return over ? Dependence::kFails : Dependence::kWaits;
  }
}

std::string describe(const v1::Dependency& dependency, const v1::Job& job) {
  const char* rule = dependency.condition() == v1::Dependency::STARTED ? "run once"
                     : dependency.condition() == v1::Dependency::ENDED ? "end"
                                                                       : "end as SUCCEEDED";
  return absl::StrCat("job ", job.name(), " is ", v1::Job::State_Name(job.state()), ", and has to ", rule);
}

}  // namespace telar::server::jobs
