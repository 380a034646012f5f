// What operators decide about nodes, and what was decided before the start.
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/requests.h"

namespace telar::server::jobs {
namespace {

constexpr const char* kPrefix = "node/";
constexpr size_t kMostReason = 500;

}  // namespace

absl::Status JobManager::replay_nodes() {
  auto rows = store_->settings(kPrefix);
  if (!rows.ok()) return rows.status();
  for (const store::SettingRow& row : *rows) {
    NodeRecord record;
    if (!row.blob || !record.ParseFromString(*row.blob)) {
      return absl::DataLossError(absl::StrCat("store: the setting ", row.key, " cannot be read"));
    }
    cluster_.set_scheduling(row.key.substr(std::string(kPrefix).size()), record.scheduling(), record.reason());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Node> JobManager::set_scheduling(const std::string& node, v1::Node::Scheduling scheduling,
                                                    const std::string& reason, const std::string& answer) {
  std::lock_guard<std::mutex> hold(mutex_);
  v1::Node first;
  auto answered = replayed(answer, first);
  if (!answered.ok()) return answered.status();
  if (*answered) return first;
  if (reason.size() > kMostReason) {
    return invalid({{"reason", absl::StrCat(reason.size(), " bytes; at most ", kMostReason)}});
  }
  if (!cluster_.known(node)) return unknown_node(node);
  const v1::Node before = cluster_.node(node);
  // Under the lock nobody sees it before it is stored; the answer, which is stored with it, has to.
  cluster_.set_scheduling(node, scheduling, reason);
  const v1::Node changed = cluster_.node(node);
  NodeRecord record;
  record.set_scheduling(scheduling);
  record.set_reason(reason);
  store::Batch batch;
  batch.settings = {{kPrefix + node, std::nullopt}};
  if (scheduling != v1::Node::OPEN) batch.settings[0].blob = record.SerializeAsString();
  if (!answer.empty()) batch.answer = store::AnswerRow{answer, changed.SerializeAsString()};
  if (absl::Status status = told_of_store(store_->commit(batch)); !status.ok()) {
    cluster_.set_scheduling(node, before.scheduling(), before.scheduling_reason());
    return status;
  }
  changes_.notify();
  return changed;
}

}  // namespace telar::server::jobs
