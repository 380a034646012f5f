// Changes that are on their way to the store while the manager's lock is free.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/epoch.h"
#include "server/jobs/job_manager.h"

namespace telar::server::jobs {
namespace {

constexpr size_t kMostTogether = 32;  // Changes; so many fit one transaction of etcd.

void log_unrecorded(const std::string& id, const char* what, const absl::Status& status) {
  spdlog::error("job {}: cannot record {}: {}", id, what, std::string(status.message()));
}

// Of a change that could not be stored: the answer of an equal request that was quicker, or why.
template <typename Answer>
absl::StatusOr<Answer> first_answer(const absl::StatusOr<bool>& answered, const Answer& first,
                                    const absl::Status& status) {
  if (answered.ok() && *answered) return first;
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Pending>> JobManager::begin(Change change) {
  const auto pending = std::make_shared<Pending>();
  for (Draft& draft : change.drafts) {
    auto batch = finish(draft);
    if (!batch.ok()) return batch.status();
    pending->keys.push_back(batch->job->id);
    pending->batches.push_back(*std::move(batch));
  }
  if (!change.rest.settings.empty() || change.rest.answer) pending->batches.push_back(std::move(change.rest));
  for (const std::string& node : change.nodes) pending->keys.push_back(node_key(node));
  for (const std::string& key : pending->keys) pending_[key] = pending;
  if (!change.request.empty()) pending_answers_[change.request] = pending->keys.front();
  pending->change = std::move(change);
  return pending;
}

absl::Status JobManager::store(const std::vector<store::Batch>& batches) const {
  const absl::Status status = batches.size() == 1 ? store_->commit(batches.front()) : store_->commit_all(batches);
  if (!absl::IsFailedPrecondition(status)) return status;
  // Another process has taken it over, for good; but the caller only has to ask that one.
  return error(absl::StatusCode::kUnavailable, "NOT_LEADER", std::string(status.message()));
}

absl::Status JobManager::finish_each(Hold& hold, const AllPending& all) {
  hold.unlock();
  // Each is told at once: whoever waits for one does not wait for the others.
  for (const auto& one : all) one->set_stored(store(one->batches));
  hold.lock();
  absl::Status first;
  for (const auto& one : all) {
    apply_pending(*one);
    if (first.ok()) first = one->wait();
  }
  return first;
}

std::vector<absl::Status> JobManager::finish_round(Hold& hold, const AllPending& all, const char* what) {
  if (all.empty()) return {};
  hold.unlock();
  for (size_t first = 0; first < all.size(); first += kMostTogether) {
    const size_t end = std::min(all.size(), first + kMostTogether);
    std::vector<store::Batch> batches;
    for (size_t i = first; i < end; ++i) {
      batches.insert(batches.end(), all[i]->batches.begin(), all[i]->batches.end());
    }
    const absl::Status status = store(batches);
    for (size_t i = first; i < end; ++i) {  // One of them alone may be at fault.
      all[i]->set_stored(status.ok() || end - first == 1 ? status : store(all[i]->batches));
    }
  }
  hold.lock();
  std::vector<absl::Status> statuses;
  for (const auto& one : all) {
    apply_pending(*one);
    statuses.push_back(one->wait());
    if (!statuses.back().ok()) log_unrecorded(one->keys.front(), what, statuses.back());
  }
  return statuses;
}

void JobManager::add(AllPending& all, Change change, const char* what) {
  if (!change.drafts.front().changed()) return;
  const std::string id = job_id(change.drafts.front().job().name());
  auto pending = begin(std::move(change));
  if (!pending.ok()) return log_unrecorded(id, what, pending.status());
  all.push_back(*std::move(pending));
}

absl::StatusOr<v1::Job> JobManager::commit(Hold& hold, Draft draft, const std::string& request) {
  auto pending = begin(change_of(std::move(draft), request));
  if (!pending.ok()) return pending.status();
  const absl::Status status = finish_each(hold, {*pending});
  if (status.ok()) return (*pending)->change.drafts.front().job();
  v1::Job first;
  hold.unlock();
  const auto answered = replayed(request, first);
  hold.lock();
  return first_answer(answered, first, status);
}

absl::StatusOr<v1::Node> JobManager::commit_node(Hold& hold, Change change, const std::string& request,
                                                 const v1::Node& node) {
  if (!request.empty()) change.rest.answer = store::AnswerRow{request, node.SerializeAsString()};
  if (change.rest.settings.empty() && !change.rest.answer) return node;  // Nothing changes, nobody asks again.
  change.nodes = {node.name()};
  change.request = request;
  const auto pending = begin(std::move(change));
  if (!pending.ok()) return pending.status();
  const absl::Status status = finish_each(hold, {*pending});
  if (status.ok()) return node;
  v1::Node first;
  hold.unlock();
  const auto answered = replayed(request, first);
  hold.lock();
  return first_answer(answered, first, status);
}

void JobManager::apply_pending(Pending& pending) {
  if (pending.applied) return;
  pending.applied = true;
  for (const std::string& key : pending.keys) pending_.erase(key);
  const Change& change = pending.change;
  if (!change.request.empty()) pending_answers_.erase(change.request);
  if (!pending.wait().ok()) return;
  for (const store::Batch& batch : pending.batches) {
    if (batch.stream) lines_[batch.job->id][{batch.stream->epoch, batch.stream->rank}] = batch.stream->next_line;
  }
  for (const Draft& draft : change.drafts) let_count(draft);
  if (change.effect) change.effect();
}

bool JobManager::await(Hold& hold, const std::string& key, const std::string& request) {
  for (bool waited = false; true; waited = true) {
    const auto answering = pending_answers_.find(request);
    const auto found = pending_.find(answering == pending_answers_.end() ? key : answering->second);
    if (found == pending_.end()) return waited;
    const std::shared_ptr<Pending> pending = found->second;
    hold.unlock();
    pending->wait().IgnoreError();  // Whoever made the change is told.
    hold.lock();
    apply_pending(*pending);
  }
}

absl::StatusOr<bool> JobManager::await_answer(Hold& hold, const std::string& key, const std::string& request,
                                              google::protobuf::Message& answer) {
  while (await(hold, key, request)) {
    hold.unlock();
    auto answered = replayed(request, answer);
    hold.lock();
    if (!answered.ok() || *answered) return answered;
  }
  return false;
}

void JobManager::await_node(Hold& hold, const std::string& node) {
  while (true) {
    await(hold, node_key(node));
    const auto here = placed_on_.find(node);
    if (here == placed_on_.end()) return;
    const auto found =
        std::find_if(here->second.begin(), here->second.end(), [this](const std::string& id) { return pending(id); });
    if (found == here->second.end()) return;  // Nothing of the node is pending, either: the lock was held since.
    await(hold, std::string(*found));         // A copy: the set may change.
  }
}

}  // namespace telar::server::jobs
