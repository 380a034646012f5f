// Traces of steps: wishes of people, told to ranks.
#include "common/errors.h"
#include "server/jobs/assignments.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/requests.h"
#include "server/jobs/traces.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {

absl::StatusOr<v1::Job> JobManager::trace(const v1::TraceJobRequest& request) {
  const std::string key = request_key("trace", request.name(), request.request_id());
  v1::Job first;
  auto answered = replayed(key, first);
  Hold hold = take(Doing::kChange);
  const std::string id = job_id(request.name());
  if (answered.ok() && !*answered) answered = await_answer(hold, id, key, first);
  if (!answered.ok()) return answered.status();
  if (*answered) return first;
  auto record = find(request.name());
  if (!record.ok()) return record.status();
  const v1::Job::State state = (*record)->job().state();
  if (terminal(state) || state == v1::Job::CANCELLING || state == v1::Job::FAILING)
    return terminal_error((*record)->job(), "traced");
  Draft draft = draft_of(id);
  if (absl::Status status = want_trace(draft, request); !status.ok()) return status;
  draft.set_answer(key);
  auto job = commit(hold, std::move(draft), key);
  if (!job.ok()) return job;
  bump(*job);  // Its ranks step on: they are told at once.
  changes_.notify();
  return job;
}

void JobManager::add_trace_wishes(const std::string& node, v1::HeartbeatResponse& response) const {
  const auto here = placed_on_.find(node);
  if (here == placed_on_.end()) return;
  for (const std::string& id : here->second) {
    const JobRecord& record = jobs_.at(id);
    const std::vector<uint64_t> steps = wanted_traces(record.job());
    if (steps.empty()) continue;
    for (const v1::RankPlacement& place : record.job().placement()) {
      if (place.node() != node || desired(record, place.rank()) != v1::Assignment::RUN) continue;
      v1::TraceWish* wish = response.add_traces();
      wish->set_job(record.job().name());
      wish->set_epoch(record.job().epoch());
      wish->set_rank(place.rank());
      wish->mutable_steps()->Assign(steps.begin(), steps.end());
    }
  }
}

}  // namespace telar::server::jobs
