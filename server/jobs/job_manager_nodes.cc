// What operators decide about nodes, and what was decided before the start.
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/requests.h"

namespace telar::server::jobs {
namespace {

constexpr size_t kMostReason = 500;

}  // namespace

absl::Status JobManager::replay_nodes() {
  auto rows = store_->settings(node_key(""));
  if (!rows.ok()) return rows.status();
  for (const store::SettingRow& row : *rows) {
    NodeRecord record;
    if (!row.blob || !record.ParseFromString(*row.blob)) {
      return absl::DataLossError(absl::StrCat("store: the setting ", row.key, " cannot be read"));
    }
    cluster_.set_scheduling(row.key.substr(node_key("").size()), record.scheduling(), record.reason());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Node> JobManager::set_scheduling(const std::string& node, v1::Node::Scheduling scheduling,
                                                    const std::string& reason, const std::string& answer) {
  v1::Node first;
  auto answered = replayed(answer, first);
  Hold hold = take(Doing::kChange);
  if (answered.ok() && !*answered) answered = await_answer(hold, node_key(node), answer, first);
  if (!answered.ok()) return answered.status();
  if (*answered) return first;
  if (reason.size() > kMostReason) {
    return invalid({{"reason", absl::StrCat(reason.size(), " bytes; at most ", kMostReason)}});
  }
  if (!cluster_.known(node)) return unknown_node(node);
  NodeRecord record;
  record.set_scheduling(scheduling);
  record.set_reason(reason);
  Change change;
  change.rest.settings = {{node_key(node), std::nullopt}};
  if (scheduling != v1::Node::OPEN) change.rest.settings[0].blob = record.SerializeAsString();
  change.effect = [this, node, scheduling, reason] {
    cluster_.set_scheduling(node, scheduling, reason);
    changes_.notify();
  };
  return commit_node(hold, std::move(change), answer, cluster_.node(node, scheduling, reason));
}

}  // namespace telar::server::jobs
