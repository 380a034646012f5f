// Logs that lack something, and room for new ones.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/cluster/times.h"
#include "server/jobs/conditions.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {

// What a rank itself says of lines that found no room on its node (worker/train/rank_log.h); 0: nothing.
uint64_t said_to_be_missing(const std::string& data) {
  static const std::string kBegin = "[telar: ", kEnd = " bytes of this log are missing here: the disk was full]\n";
  uint64_t sum = 0;
  for (size_t end = data.find(kEnd); end != std::string::npos; end = data.find(kEnd, end + 1)) {
    const size_t begin = data.rfind(kBegin, end);
    uint64_t bytes = 0;
    if (begin == std::string::npos) continue;
    const size_t number = begin + kBegin.size();
    if (absl::SimpleAtoi(data.substr(number, end - number), &bytes)) sum += bytes;
  }
  return sum;
}

}  // namespace

absl::Status JobManager::note_missing_log(const v1::AppendLogRequest& request) {
  const std::string id = job_id(request.job());
  const uint64_t missing = logs_->missing({id, request.epoch(), request.rank()});
  const uint64_t unwritten = said_to_be_missing(request.data());
  if (missing == 0 && unwritten == 0) return absl::OkStatus();
  std::unique_lock<std::mutex> hold(mutex_);
  await(hold, id);
  const auto known = jobs_.find(id);
  if (known == jobs_.end()) return absl::OkStatus();
  Draft draft = draft_of(id);
  const std::string whose = absl::StrCat("rank ", request.rank(), " epoch ", request.epoch(), ": ");
  const auto note = [&](const char* what, uint64_t bytes) {
    if (bytes > 0) set_condition(draft, "LOG_GAP", absl::StrCat(whose, what), absl::StrCat(bytes, " bytes"));
  };
  note("missing from its log: ", missing);
  note("no room on its node's disk: ", unwritten);
  return draft.changed() ? commit(draft) : absl::OkStatus();
}

void JobManager::remove_old_logs() {
  std::vector<std::pair<Clock::Wall, std::string>> over;
  {
    std::lock_guard<std::mutex> hold(mutex_);
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
