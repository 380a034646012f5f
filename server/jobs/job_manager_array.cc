// Arrays: one request, many jobs, all of them or none.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/array.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/requests.h"
#include "worker/plan/resolve.h"

namespace telar::server::jobs {
namespace {

constexpr size_t kMostViolations = 50;  // Ten thousand tasks may all be wrong in one way.
constexpr uint32_t kTasksATurn = 50;    // Then others have the lock: some milliseconds.

// The specs of all tasks, complete. Every violation of every task, the same one once.
absl::StatusOr<std::vector<v1::JobSpec>> tasks_of(const v1::CreateJobArrayRequest& request,
                                                  const cluster::Cluster& cluster, const SchedulingContext& context,
                                                  Hold& hold) {
  std::vector<Violation> found;
  for (const plan::SpecProblem& problem : plan::check_array(request.spec())) {
    found.push_back({problem.field, problem.description});
  }
  if (!found.empty()) return invalid(found);
  std::vector<v1::JobSpec> tasks;
  std::set<std::pair<std::string, std::string>> seen;
  for (uint32_t index = 0; index < request.spec().array().size() && found.size() < kMostViolations; ++index) {
    if (index % kTasksATurn == kTasksATurn - 1) hold.turn_to(Doing::kSubmit);
    std::vector<Violation> own;
    v1::CreateJobRequest task;
    task.set_parent(request.parent());
    task.set_request_id(request.request_id());
    *task.mutable_spec() = task_of(request.spec(), index, own);
    if (own.empty()) check_spec(task, cluster, context, own);
    for (Violation& violation : own) {
      if (!seen.insert({violation.field, violation.description}).second) continue;
      violation.description = absl::StrCat("task ", index, ": ", violation.description);
      found.push_back(std::move(violation));
    }
    tasks.push_back(std::move(*task.mutable_spec()));
  }
  if (!found.empty()) return invalid(found);
  return tasks;
}

absl::Status check_tasks(const std::vector<v1::JobSpec>& tasks, const cluster::Cluster& cluster,
                         const SchedulingContext& context) {
  std::string last;  // Tasks that want the same are looked at once.
  for (const v1::JobSpec& task : tasks) {
    if (absl::Status status = check_dependencies(task, context); !status.ok()) return status;
    const std::string wanted =
        absl::StrCat(task.resources().SerializeAsString(), "|", task.parallel().SerializeAsString(), "|",
                     task.scheduling().SerializeAsString());
    if (wanted == last) continue;
    if (absl::Status status = check_room(task, cluster, context); !status.ok()) return status;
    last = wanted;
  }
  return absl::OkStatus();
}

v1::Job brief(const v1::Job& job) {
  v1::Job answer = job;
  answer.clear_spec();
  answer.clear_progress();
  answer.clear_run_dir();
  return answer;
}

}  // namespace

absl::StatusOr<v1::CreateJobArrayResponse> JobManager::create_array(v1::CreateJobArrayRequest request,
                                                                    const std::string& owner) {
  const std::string key = request.validate_only() ? "" : request_key("array", owner, request.request_id());
  v1::CreateJobArrayResponse response;
  auto answered = replayed(key, response);
  if (!answered.ok()) return answered.status();
  if (*answered) return response;
  Hold hold = take(Doing::kSubmit);
  auto tasks = tasks_of(request, cluster_, scheduling_context(), hold);
  if (!tasks.ok()) return tasks.status();
  if (absl::Status status = check_tasks(*tasks, cluster_, scheduling_context()); !status.ok()) return status;
  const std::string project = project_of(request.parent()), id = new_id();
  const std::string array = absl::StrCat(project, "/jobs/", id, "-0");
  const uint64_t order = next_order_;
  next_order_ += tasks->size();
  std::vector<Draft> drafts;
  std::vector<store::Batch> batches;
  for (uint32_t index = 0; index < tasks->size(); ++index) {
    if (index % kTasksATurn == kTasksATurn - 1) hold.turn_to(Doing::kSubmit);
    const std::string own = request.validate_only() ? "" : absl::StrCat(id, "-", index);
    Draft draft = submitted(project, owner, (*tasks)[index], own, order + index);
    draft.job().set_array(array);
    draft.job().set_array_index(index);
    auto batch = draft.finish();
    if (!batch.ok()) return batch.status();
    batches.push_back(*std::move(batch));
    *response.add_jobs() = brief(draft.job());
    drafts.push_back(std::move(draft));
  }
  if (request.validate_only()) return tried_out(drafts);
  if (!key.empty()) batches.back().answer = store::AnswerRow{key, response.SerializeAsString()};
  // Nobody knows of the tasks yet, so nobody can want to change one meanwhile.
  hold.unlock();
  const absl::Status status = store(batches);
  if (!status.ok()) {  // The answer of an equal request that was quicker, or why.
    response.Clear();
    answered = replayed(key, response);
    return answered.ok() && *answered ? absl::StatusOr<v1::CreateJobArrayResponse>(response) : status;
  }
  hold.lock();
  for (const Draft& draft : drafts) apply(JobRecord(), draft.record());
  changes_.notify();
  return response;
}

// What there is to say of the first task; all tasks want about the same.
v1::CreateJobArrayResponse JobManager::tried_out(const std::vector<Draft>& drafts) {
  v1::CreateJobArrayResponse response;
  for (const Draft& draft : drafts) {
    v1::Job& job = *response.add_jobs();
    job.set_array_index(draft.job().array_index());
    job.set_parameters(draft.job().parameters());
    if (response.jobs_size() > 1) continue;
    *job.mutable_spec() = draft.job().spec();
    try_out(draft.record(), job);
  }
  return response;
}

}  // namespace telar::server::jobs
