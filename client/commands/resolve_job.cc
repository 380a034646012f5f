#include "client/commands/resolve_job.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/call.h"
#include "client/output/format.h"

namespace telar::client {
namespace {

constexpr const char* kFullPrefix = "projects/";
constexpr size_t kMostCandidates = 5;

absl::Status not_found(const std::string& job) {
  return absl::NotFoundError(absl::StrCat("no job has the id or name '", job, "'; `telar list` shows all"));
}

absl::Status ambiguous(const std::string& label, const std::vector<const v1::Job*>& jobs) {
  std::string text = absl::StrCat("'", label, "' names ", jobs.size(), " jobs, say which by id: ");
  for (size_t i = 0; i < jobs.size() && i < kMostCandidates; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", id_of(jobs[i]->name()), " (", v1::Job::State_Name(jobs[i]->state()),
                    ")");
  }
  if (jobs.size() > kMostCandidates) absl::StrAppend(&text, " and ", jobs.size() - kMostCandidates, " more");
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<v1::Job> by_list(Context& context, const std::string& label) {
  const absl::StatusOr<v1::ListJobsResponse> all = list_jobs(context, {});
  if (!all.ok()) return all.status();
  std::vector<const v1::Job*> any, live;
  for (const v1::Job& job : all->jobs()) {
    if (id_of(job.name()) == label) return job;  // Of another project: no two jobs have one id.
    if (job.spec().name() != label) continue;
    any.push_back(&job);
    if (!is_terminal(job.state())) live.push_back(&job);
  }
  if (any.empty()) return not_found(label);
  const auto& candidates = live.empty() ? any : live;
  if (candidates.size() > 1) return ambiguous(label, candidates);
  return *candidates.front();
}

}  // namespace

absl::StatusOr<v1::Job> resolve_job(Context& context, const std::string& job) {
  const bool full = job.starts_with(kFullPrefix);
  absl::StatusOr<v1::Job> found = get_job(context, full ? job : context.parent() + "/jobs/" + job);
  // A label need not be a well-formed id.
  const bool absent = absl::IsNotFound(found.status()) || absl::IsInvalidArgument(found.status());
  if (!absent) return found;
  return full ? not_found(job) : by_list(context, job);
}

}  // namespace telar::client
