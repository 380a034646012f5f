// Submit, change, cancel: what people ask for, each answered once and for all by its request id.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/process.h"
#include "server/cluster/times.h"
#include "server/jobs/admission.h"
#include "server/jobs/auto_layout.h"
#include "server/jobs/epoch.h"
#include "server/jobs/goodput.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/progress.h"
#include "server/jobs/requests.h"
#include "server/jobs/transitions.h"
#include "worker/plan/resolve.h"

namespace telar::server::jobs {
namespace {

constexpr int kIdCharacters = 8;
constexpr const char* kUpdatable[] = {"queue", "priority", "preemptible", "time_limit_seconds"};
constexpr const char* kMaskPrefix = "spec.scheduling.";

// The fields that the mask names, without the prefix.
std::vector<std::string> masked(const google::protobuf::FieldMask& mask, std::vector<Violation>& found) {
  std::vector<std::string> fields;
  for (const std::string& path : mask.paths()) {
    const bool ours = path.rfind(kMaskPrefix, 0) == 0;
    const std::string field = ours ? path.substr(std::string(kMaskPrefix).size()) : path;
    if (ours && std::find(std::begin(kUpdatable), std::end(kUpdatable), field) != std::end(kUpdatable)) {
      fields.push_back(field);
    } else {
      found.push_back({"update_mask", absl::StrCat("'", path, "' cannot be changed; of ", kMaskPrefix, ": ",
                                                   absl::StrJoin(kUpdatable, ", "))});
    }
  }
  if (mask.paths().empty()) found.push_back({"update_mask", "is empty: nothing would change"});
  return fields;
}

void copy_fields(const v1::SchedulingSpec& from, const std::vector<std::string>& fields, v1::SchedulingSpec& to) {
  for (const std::string& field : fields) {
    if (field == "queue") to.set_queue(queue_of(from));
    if (field == "priority") to.set_priority(from.priority());
    if (field == "preemptible") to.set_preemptible(!from.has_preemptible() || from.preemptible());
    if (field == "time_limit_seconds") to.set_time_limit_seconds(from.time_limit_seconds());
  }
}

absl::Status check_etag(const JobRecord& record, const std::string& etag) {
  if (etag.empty() || etag == record.job().etag()) return absl::OkStatus();
  return error(absl::StatusCode::kAborted, "ETAG_MISMATCH",
               absl::StrCat("job '", record.job().name(), "': etag '", etag, "' is not the current one, '",
                            record.job().etag(), "'; read the job again"));
}

}  // namespace

SchedulingContext JobManager::scheduling_context() const {
  const auto find_job = [this](const std::string& name) -> const v1::Job* {
    auto record = find(name);
    return record.ok() ? &(*record)->job() : nullptr;
  };
  return {.queues = &options_.queues, .roots = &roots_, .find_job = find_job};
}

std::string JobManager::new_id() const {
  std::string id = random_id(kIdCharacters);
  while (jobs_.count(id) != 0 || pending_.count(id) != 0) id = random_id(kIdCharacters);
  return id;
}

Draft JobManager::submitted(const std::string& project, const std::string& owner, const v1::JobSpec& spec,
                            const std::string& id, uint64_t order, const std::string& why) const {
  JobRecord record;
  v1::Job& job = *record.mutable_job();
  *job.mutable_spec() = spec;
  job.set_parameters(plan::parameter_count(spec.model()));
  begin_progress(record);
  job.set_name(absl::StrCat(project, "/jobs/", id));
  job.set_uid(uuid4());
  job.set_owner(owner);
  job.set_run_dir(absl::StrCat(options_.run_root, "/", id));
  record.set_order(order);
  Draft draft(std::move(record), clock_->wall(), timeline_.now());
  *draft.job().mutable_create_time() = cluster::to_timestamp(draft.now());
  draft.transition(v1::Job::QUEUED, why);
  return draft;
}

absl::StatusOr<std::string> JobManager::decide_autos(v1::CreateJobRequest& request) {
  if (!has_auto(request.spec()) || request.spec().has_array()) return "";
  std::vector<v1::Node> nodes;
  {
    Hold hold = take(Doing::kSubmit);
    nodes = cluster_.nodes();
  }
  std::lock_guard<std::mutex> alone(layouts_mutex_);
  return choose_autos(*request.mutable_spec(), nodes);
}

absl::StatusOr<v1::Job> JobManager::create(v1::CreateJobRequest request, const std::string& owner) {
  const std::string key = request.validate_only() ? "" : request_key("create", owner, request.request_id());
  v1::Job first;
  auto answered = replayed(key, first);
  if (!answered.ok()) return answered.status();
  if (*answered) return first;
  const auto chosen = decide_autos(request);
  if (!chosen.ok()) return chosen.status();
  Hold hold = take(Doing::kSubmit);
  if (answered.ok() && !*answered) answered = await_answer(hold, "", key, first);
  if (!answered.ok()) return answered.status();
  if (*answered) return first;
  if (absl::Status status = admit(request, cluster_, scheduling_context()); !status.ok()) return status;
  const std::string project = project_of(request.parent());
  if (request.validate_only()) {
    Draft draft = submitted(project, owner, request.spec(), "", next_order_);
    v1::Job job;
    *job.mutable_spec() = request.spec();
    job.set_parameters(draft.job().parameters());
    *job.mutable_progress() = draft.job().progress();
    job.set_message(*chosen);
    try_out(draft.record(), job);
    return job;
  }
  const std::string why = chosen->empty() ? "submitted" : absl::StrCat("submitted; ", *chosen);
  Draft draft = submitted(project, owner, request.spec(), new_id(), next_order_++, why);
  draft.set_answer(key);
  return commit(hold, std::move(draft), key);
}

absl::StatusOr<v1::Job> JobManager::update(const v1::UpdateJobRequest& request) {
  const std::string key = request_key("update", request.job().name(), request.request_id());
  v1::Job first;
  auto answered = replayed(key, first);
  Hold hold = take(Doing::kChange);
  if (answered.ok() && !*answered) answered = await_answer(hold, job_id(request.job().name()), key, first);
  if (!answered.ok()) return answered.status();
  if (*answered) return first;
  std::vector<Violation> found;
  const std::vector<std::string> fields = masked(request.update_mask(), found);
  auto record = find(request.job().name());
  if (!record.ok()) return found.empty() ? record.status() : invalid(found);
  Draft draft = draft_of(job_id(request.job().name()));
  v1::SchedulingSpec& scheduling = *draft.job().mutable_spec()->mutable_scheduling();
  copy_fields(request.job().spec().scheduling(), fields, scheduling);
  for (const plan::SpecProblem& problem : plan::check_scheduling(scheduling)) {
    found.push_back({"job." + problem.field, problem.description});
  }
  check_queue(scheduling.queue(), options_.queues, "job.spec.scheduling.queue", found);
  if (!found.empty()) return invalid(found);
  if (terminal((*record)->job().state())) return terminal_error(draft.job(), "changed");
  if (absl::Status status = check_etag(**record, request.etag()); !status.ok()) return status;
  if (absl::Status status = check_move(**record, scheduling.queue()); !status.ok()) return status;
  draft.touch();
  const uint64_t limit = scheduling.time_limit_seconds();
  const bool used_up = limit > 0 && run_seconds(goodput_of(**record, timeline_.now())) >= static_cast<double>(limit);
  if (used_up && draft.job().state() == v1::Job::QUEUED) end_at_time_limit(draft);  // One that runs is seen to.
  draft.set_answer(key);
  return commit(hold, std::move(draft), key);
}

// A job that has devices takes them along into another queue.
absl::Status JobManager::check_move(const JobRecord& record, const std::string& to) const {
  const v1::Job& job = record.job();
  const QueueConfig queue = config_of(options_.queues, to);
  if (job.spec().scheduling().queue() == to || queue.quota_devices == 0 || !placed(job.state())) {
    return absl::OkStatus();
  }
  uint32_t held = static_cast<uint32_t>(job.placement_size());
  for (const std::string& id : placed_) {
    const v1::Job& other = jobs_.at(id).job();
    if (other.spec().scheduling().queue() == to) held += static_cast<uint32_t>(other.placement_size());
  }
  if (held <= queue.quota_devices) return absl::OkStatus();
  return error(absl::StatusCode::kFailedPrecondition, "QUOTA_EXCEEDED",
               absl::StrCat("job '", job.name(), "': with its ", job.placement_size(), " devices queue '", to,
                            "' would have ", held, ", its quota is ", queue.quota_devices));
}

absl::StatusOr<v1::Job> JobManager::cancel(const v1::CancelJobRequest& request) {
  const std::string key = request_key("cancel", request.name(), request.request_id());
  v1::Job first;
  auto answered = replayed(key, first);
  Hold hold = take(Doing::kChange);
  if (answered.ok() && !*answered) answered = await_answer(hold, job_id(request.name()), key, first);
  if (!answered.ok()) return answered.status();
  if (*answered) return first;
  auto record = find(request.name());
  if (!record.ok()) return record.status();
  const v1::Job::State state = (*record)->job().state();
  if (state == v1::Job::SUCCEEDED || state == v1::Job::FAILED) {
    return terminal_error((*record)->job(), "cancelled");
  }
  if (absl::Status status = check_etag(**record, request.etag()); !status.ok()) return status;
  Draft draft = draft_of(job_id(request.name()));
  jobs::cancel(draft);
  draft.set_answer(key);
  if (!draft.changed() && key.empty()) return draft.job();
  return commit(hold, std::move(draft), key);
}

}  // namespace telar::server::jobs
