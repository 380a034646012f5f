// Changes that are on their way to the store while the manager's lock is free.
#include <algorithm>
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
  auto batch = finish(draft);
  if (!batch.ok()) return batch.status();
  const std::string id = batch->job->id;
  std::shared_ptr<Pending> pending(new Pending{std::move(draft), *std::move(batch), request});
  pending_[id] = pending;
  if (!request.empty()) pending_answers_[request] = id;
  return pending;
}

absl::Status JobManager::finish_commits(std::unique_lock<std::mutex>& hold, const AllPending& all) {
  hold.unlock();
  // Each is told at once: whoever waits for one does not wait for the others.
  for (const auto& one : all) one->set_stored(told_of_store(store_->commit(one->batch)));
  hold.lock();
  absl::Status first;
  for (const auto& one : all) {
    apply_pending(*one);
    if (first.ok()) first = one->wait();
  }
  return first;
}

std::vector<absl::Status> JobManager::finish_together(std::unique_lock<std::mutex>& hold, const AllPending& all) {
  std::vector<store::Batch> batches;
  for (const auto& one : all) batches.push_back(one->batch);
  hold.unlock();
  const absl::Status status = told_of_store(store_->commit_all(batches));
  for (const auto& one : all) {  // One of them alone may be at fault.
    const bool alone = all.size() == 1 || status.ok();
    one->set_stored(alone ? status : told_of_store(store_->commit(one->batch)));
  }
  hold.lock();
  std::vector<absl::Status> statuses;
  for (const auto& one : all) {
    apply_pending(*one);
    statuses.push_back(one->wait());
  }
  return statuses;
}

absl::StatusOr<v1::Job> JobManager::commit_unlocked(std::unique_lock<std::mutex>& hold, Draft draft,
                                                    const std::string& request) {
  auto pending = begin_commit(std::move(draft), request);
  if (!pending.ok()) return pending.status();
  if (absl::Status status = finish_commits(hold, {*pending}); !status.ok()) return first_answer(request, status);
  return (*pending)->draft.job();
}

absl::StatusOr<v1::Job> JobManager::first_answer(const std::string& request, const absl::Status& status) const {
  v1::Job first;
  const auto answered = replayed(request, first);
  if (answered.ok() && *answered) return first;
  return status;
}

void JobManager::apply_pending(Pending& pending) {
  if (pending.applied) return;
  pending.applied = true;
  const std::string& id = pending.batch.job->id;
  pending_.erase(id);
  if (!pending.request.empty()) pending_answers_.erase(pending.request);
  if (pending.wait().ok()) let_count(pending.draft);
}

bool JobManager::await(std::unique_lock<std::mutex>& hold, const std::string& id, const std::string& request) {
  for (bool waited = false; true; waited = true) {
    const auto answering = pending_answers_.find(request);
    const auto found = pending_.find(answering == pending_answers_.end() ? id : answering->second);
    if (found == pending_.end()) return waited;
    const std::shared_ptr<Pending> pending = found->second;
    hold.unlock();
    pending->wait().IgnoreError();  // Whoever made the change is told.
    hold.lock();
    apply_pending(*pending);
  }
}

void JobManager::await_node(std::unique_lock<std::mutex>& hold, const std::string& node) {
  while (true) {
    const auto here = placed_on_.find(node);
    if (here == placed_on_.end()) return;
    const auto found =
        std::find_if(here->second.begin(), here->second.end(), [this](const std::string& id) { return pending(id); });
    if (found == here->second.end()) return;
    await(hold, std::string(*found));  // A copy: the set may change.
  }
}

}  // namespace telar::server::jobs
