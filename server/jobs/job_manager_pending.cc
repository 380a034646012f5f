// Changes that are on their way to the store while the manager's lock is free.
#include <condition_variable>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/epoch.h"
#include "server/jobs/job_manager.h"

namespace telar::server::jobs {

// Shared by the thread that stores it and by those that wait for the job.
struct JobManager::Pending {
  Draft draft;
  store::Batch batch;
  std::string request;
  bool applied = false;  // Guarded by the manager's lock.

  std::mutex mutex;
  std::condition_variable changed;
  bool stored = false;  // Guarded by `mutex`, as is the next.
  absl::Status status;

  void set_stored(absl::Status result) {
    std::lock_guard<std::mutex> hold(mutex);
    stored = true;
    status = std::move(result);
    changed.notify_all();
  }
  absl::Status wait() {
    std::unique_lock<std::mutex> hold(mutex);
    changed.wait(hold, [this] { return stored; });
    return status;
  }
};

// A store that another process has taken over refuses a commit for good, but the caller only has to ask that one.
absl::Status JobManager::told_of_store(const absl::Status& status) const {
  if (!absl::IsFailedPrecondition(status)) return status;
  return error(absl::StatusCode::kUnavailable, "NOT_LEADER", std::string(status.message()));
}

absl::StatusOr<std::shared_ptr<JobManager::Pending>> JobManager::begin_commit(Draft draft, const std::string& request) {
  settle(draft);
  auto batch = draft.finish();
  if (!batch.ok()) return batch.status();
  const std::string id = batch->job->id;
  if (pending_.count(id) != 0) {
    return absl::InternalError(absl::StrCat("job ", id, ": a change was made of a state that is being changed"));
  }
  std::shared_ptr<Pending> pending(new Pending{std::move(draft), *std::move(batch), request});
  pending_[id] = pending;
  if (!request.empty()) pending_answers_[request] = id;
  return pending;
}

absl::Status JobManager::finish_commits(std::unique_lock<std::mutex>& hold,
                                        const std::vector<std::shared_ptr<Pending>>& all) {
  hold.unlock();
  // All are stored before the lock is asked for: who holds it may be waiting for any of them.
  for (const auto& one : all) one->set_stored(told_of_store(store_->commit(one->batch)));
  hold.lock();
  absl::Status first;
  for (const auto& one : all) {
    apply_pending(*one);
    if (first.ok()) first = one->wait();
  }
  return first;
}

absl::StatusOr<v1::Job> JobManager::commit_unlocked(std::unique_lock<std::mutex>& hold, Draft draft,
                                                    const std::string& request) {
  auto pending = begin_commit(std::move(draft), request);
  if (!pending.ok()) return pending.status();
  if (absl::Status status = finish_commits(hold, {*pending}); !status.ok()) return status;
  return (*pending)->draft.job();
}

void JobManager::apply_pending(Pending& pending) {
  if (pending.applied) return;
  pending.applied = true;
  const std::string& id = pending.batch.job->id;
  pending_.erase(id);
  if (!pending.request.empty()) pending_answers_.erase(pending.request);
  if (!pending.wait().ok()) return;
  const auto known = jobs_.find(id);
  const JobRecord before = known == jobs_.end() ? JobRecord() : std::move(known->second);
  apply(before, pending.draft.record());
  if (observer_ != nullptr && pending.draft.restarted()) observer_->on_restart(*pending.draft.restarted());
  changes_.notify();
}

void JobManager::complete(const std::string& id) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  const std::shared_ptr<Pending> pending = found->second;
  pending->wait().IgnoreError();  // Whoever made the change is told.
  apply_pending(*pending);
}

void JobManager::complete_on(const std::string& node) {
  const auto here = placed_on_.find(node);
  if (here == placed_on_.end()) return;
  const std::set<std::string> ids = here->second;  // A change may take one out.
  for (const std::string& id : ids) complete(id);
}

void JobManager::complete_known() {
  std::vector<std::string> ids;
  for (const auto& [id, pending] : pending_) {
    if (jobs_.count(id) != 0) ids.push_back(id);
  }
  for (const std::string& id : ids) complete(id);
}

}  // namespace telar::server::jobs
