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

constexpr const char* kResidue = "what is left of it";

// The rank that is placed on it; nothing when the job has none there.
std::optional<uint32_t> rank_on(const v1::Job& job, const std::string& node, const v1::Device& device) {
  for (const v1::RankPlacement& place : job.placement()) {
    const bool same = place.device().kind() == device.kind() && place.device().index() == device.index();
    if (place.node() == node && same && place.state() != v1::RankPlacement::LOST) return place.rank();
  }
  return std::nullopt;
}

}  // namespace

// What of it counts is told to the log, too.
void JobManager::add_devices(const std::string& node, const DeviceWatch::Changes& devices, Change& change) {
  if (devices.empty()) return;
  for (store::SettingRow& row : DeviceWatch::rows(devices)) change.rest.settings.push_back(std::move(row));
  change.nodes.push_back(node);
  change.effect = [this, devices, before = std::move(change.effect)] {
    if (before) before();
    for (const auto& [device, record] : devices) {
      spdlog::warn("node {} {} {}: {}", device.node, v1::ResourceSpec::Kind_Name(device.kind), device.index,
                   record.quarantine().empty() ? "in order" : "in quarantine: " + record.quarantine());
    }
    devices_.apply(devices);
    changes_.notify();
  };
}

void JobManager::take_finding(const std::string& node, const DeviceWatch::Finding& finding, Draft& draft) const {
  const auto rank = rank_on(draft.job(), node, finding.device);
  if (!rank) return;
  set_condition(draft, "DEVICE_FAULT", absl::StrCat("node ", node, ": "), finding.message);
  if (finding.fails) fail_device(draft, *rank, finding.message);
}

void JobManager::give_up_receipts(Hold& hold) {
  AllPending changes;
  for (const std::string& id : placed_) {
    const JobRecord& record = jobs_.at(id);
    if (pending(id) || !receipts_overdue(record, timeline_, options_.receipt_deadline)) continue;
    const std::vector<std::string> silent = missing_receipts(record);
    if (std::any_of(silent.begin(), silent.end(), [this](const auto& node) { return pending(node_key(node)); })) {
      continue;  // In the next round.
    }
    Change change = change_of(draft_of(id));
    jobs::give_up_receipts(change.drafts.front());
    for (const std::string& node : silent) {
      DeviceWatch::Changes left;
      for (const v1::RankPlacement& place : record.job().placement()) {
        if (place.node() != node) continue;
        left.merge(devices_.without_receipt(node, place.device(), record.job(), clock_->wall()));
      }
      add_devices(node, left, change);
    }
    add(changes, std::move(change), kResidue);
  }
  finish_round(hold, changes, kResidue);  // What cannot be stored now is seen again in the next round.
}

absl::StatusOr<v1::Node> JobManager::release_device(const v1::ReleaseDeviceRequest& request) {
  const std::string key = request_key("release", request.name(), request.request_id());
  v1::Node node;
  auto answered = replayed(key, node);
  Hold hold = take(Doing::kChange);
  if (answered.ok() && !*answered) answered = await_answer(hold, node_key(request.name()), key, node);
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
  Change change;
  add_devices(request.name(), *changes, change);
  return commit_node(hold, std::move(change), key, node);
}

}  // namespace telar::server::jobs
