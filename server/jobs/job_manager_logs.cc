// Logs that lack something, and room for new ones.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/cluster/times.h"
#include "server/jobs/conditions.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
absl::Status JobManager::note_missing_log(const v1::AppendLogRequest& request) {
  const std::string id = job_id(request.job());
  const uint64_t missing = logs_->missing({id, request.epoch(), request.rank()});
  if (missing == 0) return absl::OkStatus();
  Hold hold = take(Doing::kReport);
  await(hold, id);
  const auto known = jobs_.find(id);
  if (known == jobs_.end()) return absl::OkStatus();
  Draft draft = draft_of(id);
  set_log_gap(draft, request.epoch(), request.rank(), "missing from its log: ", missing);
  return draft.changed() ? commit(hold, std::move(draft)).status() : absl::OkStatus();
}

void JobManager::remove_old_logs() {
  std::vector<std::pair<Clock::Wall, std::string>> over;
  {
    Hold hold = take(Doing::kCount);
    for (const auto& [id, record] : jobs_) {
      if (terminal(record.job().state())) over.emplace_back(cluster::to_wall(record.job().end_time()), id);
    }
  }
  std::sort(over.begin(), over.end());
  std::vector<std::string> ids;
  for (const auto& [time, id] : over) ids.push_back(id);
  const uint64_t removed = logs_->remove_old(ids);
  if (removed > 0) spdlog::info("removed {} bytes of logs of jobs that are over", removed);
}

}  // namespace telar::server::jobs
