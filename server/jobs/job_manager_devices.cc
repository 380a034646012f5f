// Devices that fail, or on which something is left.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/conditions.h"
#include "server/jobs/epoch.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/receipts.h"
#include "server/jobs/requests.h"

namespace telar::server::jobs {
namespace {

// The rank that is placed on it; nothing when the job has none there.
std::optional<uint32_t> rank_on(const v1::Job& job, const std::string& node, const v1::Device& device) {
  for (const v1::RankPlacement& place : job.placement()) {
    const bool same = place.device().kind() == device.kind() && place.device().index() == device.index();
    if (place.node() == node && same && place.state() != v1::RankPlacement::LOST) return place.rank();
  }
  return std::nullopt;
}

}  // namespace

absl::Status JobManager::change_devices(const DeviceWatch::Changes& changes,
                                        const std::optional<store::AnswerRow>& answer) {
  if (changes.empty() && !answer) return absl::OkStatus();
  store::Batch batch;
  batch.answer = answer;
  batch.settings = DeviceWatch::rows(changes);
  if (absl::Status status = told_of_store(store_->commit(batch)); !status.ok()) return status;
  for (const auto& [device, record] : changes) {
    spdlog::warn("node {} {} {}: {}", device.node, v1::ResourceSpec::Kind_Name(device.kind), device.index,
                 record.quarantine().empty() ? "in order" : "in quarantine: " + record.quarantine());
  }
  devices_.apply(changes);
  changes_.notify();
  return absl::OkStatus();
}

absl::Status JobManager::take_finding(const std::string& node, const DeviceWatch::Finding& finding) {
  const auto here = placed_on_.find(node);
  if (here == placed_on_.end()) return absl::OkStatus();
  const std::set<std::string> ids = here->second;  // A commit may take one out.
  for (const std::string& id : ids) {
    const auto rank = rank_on(jobs_.at(id).job(), node, finding.device);
    if (!rank) continue;
    Draft draft = draft_of(id);
    set_condition(draft, "DEVICE_FAULT", absl::StrCat("node ", node, ": "), finding.message);
    if (finding.fails) fail_device(draft, *rank, finding.message);
    if (absl::Status status = commit(draft); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status JobManager::observe_devices(const v1::HeartbeatRequest& request) {
  const DeviceWatch::Judgement judgement = devices_.judge(request, clock_->wall());
  devices_.follow(request, clock_->wall());
  // The jobs first: after a crash between the two, what was not judged is judged again.
  for (const DeviceWatch::Finding& finding : judgement.findings) {
    if (absl::Status status = take_finding(request.node(), finding); !status.ok()) return status;
  }
  return change_devices(judgement.changes);
}

void JobManager::give_up_receipts() {
  const std::set<std::string> ids = placed_;  // A commit may take one out.
  for (const std::string& id : ids) {
    const JobRecord& record = jobs_.at(id);
    if (pending(id) || !receipts_overdue(record, timeline_, options_.receipt_deadline)) continue;
    DeviceWatch::Changes changes;
    const std::vector<std::string> silent = missing_receipts(record);
    for (const v1::RankPlacement& place : record.job().placement()) {
      if (std::find(silent.begin(), silent.end(), place.node()) == silent.end()) continue;
      changes.merge(devices_.without_receipt(place.node(), place.device(), record.job(), clock_->wall()));
    }
    Draft draft = draft_of(id);
    jobs::give_up_receipts(draft);
    if (!draft.changed()) continue;
    absl::Status status = change_devices(changes);
    if (status.ok()) status = commit(draft);
    // What cannot be stored now is seen again in the next round.
    if (!status.ok()) spdlog::error("job {}: cannot record what is left: {}", id, std::string(status.message()));
  }
}

absl::StatusOr<v1::Node> JobManager::release_device(const v1::ReleaseDeviceRequest& request) {
  const std::string key = request_key("release", request.name(), request.request_id());
  std::lock_guard<std::mutex> hold(mutex_);
  v1::Node node;
  const auto answered = replayed(key, node);
  if (!answered.ok()) return answered.status();
  if (*answered) return node;
  if (!cluster_.known(request.name())) return unknown_node(request.name());
  node = cluster_.node(request.name());
  const auto device =
      std::find_if(node.mutable_devices()->begin(), node.mutable_devices()->end(), [&](const v1::DeviceStatus& one) {
        return one.device().kind() == request.kind() && one.device().index() == request.index();
      });
  if (device == node.mutable_devices()->end()) {
    return error(absl::StatusCode::kNotFound, "DEVICE_NOT_FOUND",
                 absl::StrCat("node '", request.name(), "' has no device ", v1::ResourceSpec::Kind_Name(request.kind()),
                              " ", request.index()));
  }
  auto changes = devices_.release({request.name(), request.kind(), request.index()});
  if (!changes.ok()) return changes.status();
  device->clear_quarantine();
  device->clear_quarantine_time();
  std::optional<store::AnswerRow> answer;
  if (!key.empty()) answer = store::AnswerRow{key, node.SerializeAsString()};
  if (absl::Status status = change_devices(*changes, answer); !status.ok()) return status;
  return node;
}

}  // namespace telar::server::jobs
