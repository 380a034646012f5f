#include "server/jobs/device_watch.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"
#include "server/cluster/device_policy.h"
#include "server/cluster/times.h"

namespace telar::server::jobs {
namespace {

using cluster::DeviceId;
using cluster::FaultRule;
using cluster::id_of;
using cluster::rule_of;

std::string key_of(const DeviceId& device) {
  return absl::StrCat(kQuarantinePrefix, device.node, "/", v1::ResourceSpec::Kind_Name(device.kind), "/", device.index);
}

std::optional<DeviceId> id_in(const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(key, '/');
  DeviceId device;
  if (parts.size() != 4 || !v1::ResourceSpec::Kind_Parse(parts[2], &device.kind) ||
      !absl::SimpleAtoi(parts[3], &device.index)) {
    return std::nullopt;
  }
  device.node = parts[1];
  return device;
}

std::string in_words(const v1::DeviceFault& fault, uint64_t times) {
  std::string words = fault.code();
  const std::string meaning = rule_of(fault.code()).meaning;
  if (!meaning.empty()) absl::StrAppend(&words, " (", meaning, ")");
  if (!fault.message().empty()) absl::StrAppend(&words, ": ", fault.message());
  return times == 1 ? words : absl::StrCat(words, ", ", times, " times");
}

void set_quarantine(DeviceRecord& record, const std::string& reason, Clock::Wall now) {
  record.set_quarantine(reason);
  *record.mutable_time() = cluster::to_timestamp(now);
}

void clear_quarantine(DeviceRecord& record) {
  record.clear_quarantine();
  record.clear_time();
  record.clear_code();
  record.clear_job();
  record.clear_epoch();
}

bool tells_of(const v1::DeviceHealth& health, const std::string& code) {
  return std::any_of(health.faults().begin(), health.faults().end(),
                     [&](const v1::DeviceFault& fault) { return fault.code() == code; });
}

// What is left on a device by that epoch; null: the receipt names nothing there.
const v1::Residue* residue_on(const v1::Receipt& receipt, const DeviceId& device) {
  for (const v1::Residue& residue : receipt.residues()) {
    if (residue.has_device() && residue.device().kind() == device.kind && residue.device().index() == device.index) {
      return &residue;
    }
  }
  return nullptr;
}

// Whether the node still has ranks of the epoch whose end it has not told of.
bool has_ranks(const v1::HeartbeatRequest& request, const std::string& job, uint64_t epoch) {
  const bool told = std::any_of(request.receipts().begin(), request.receipts().end(), [&](const v1::Receipt& receipt) {
    return receipt.job() == job && receipt.epoch() == epoch;
  });
  return !told && std::any_of(request.ranks().begin(), request.ranks().end(),
                              [&](const v1::RankStatus& rank) { return rank.job() == job && rank.epoch() == epoch; });
}

}  // namespace

std::string device_name(const v1::Device& device) {
  return absl::StrCat(absl::AsciiStrToLower(v1::ResourceSpec::Kind_Name(device.kind())), ":", device.index());
}

absl::Status DeviceWatch::load(const std::vector<store::SettingRow>& rows) {
  Changes changes;
  for (const store::SettingRow& row : rows) {
    const auto device = id_in(row.key);
    DeviceRecord record;
    if (!device || !row.blob || !record.ParseFromString(*row.blob)) {
      return absl::DataLossError(absl::StrCat("store: setting ", row.key, " cannot be read"));
    }
    changes[*device] = std::move(record);
  }
  apply(changes);
  return absl::OkStatus();
}

const DeviceRecord& DeviceWatch::record_of(const DeviceId& device) const {
  static const DeviceRecord kNone;
  const auto found = records_.find(device);
  return found == records_.end() ? kNone : found->second;
}

void DeviceWatch::judge_faults(const v1::HeartbeatRequest& request, Clock::Wall now, Judgement& judgement) const {
  for (const v1::DeviceHealth& health : request.health()) {
    const DeviceId device = id_of(request.node(), health.device());
    DeviceRecord record = record_of(device);
    if (record.incarnation() != request.incarnation()) record.clear_judged();
    record.set_incarnation(request.incarnation());
    bool changed = false;
    for (const v1::DeviceFault& fault : health.faults()) {
      uint64_t& judged = (*record.mutable_judged())[fault.code()];
      if (fault.count() <= judged) continue;
      const FaultRule rule = rule_of(fault.code());
      const std::string words = in_words(fault, fault.count() - judged);
      judged = fault.count();
      changed = true;
      const bool out = rule.cause == FaultRule::Cause::kDevice;
      const char* whose =
          rule.cause == FaultRule::Cause::kApplication ? "; the application's, the device is in order" : "";
      judgement.findings.push_back({health.device(), out || rule.cause == FaultRule::Cause::kContained,
                                    absl::StrCat(device_name(health.device()), ": ", words, whose)});
      if (!out || !record.quarantine().empty()) continue;
      set_quarantine(record, words, now);
      record.set_code(fault.code());
    }
    const bool over = !record.code().empty() && !record.quarantine().empty() &&
                      rule_of(record.code()).release == FaultRule::Release::kCondition &&
                      health.state() == v1::DeviceHealth::HEALTHY && !tells_of(health, record.code());
    if (over) clear_quarantine(record);
    if (changed || over) judgement.changes[device] = std::move(record);
  }
}

void DeviceWatch::judge_residues(const v1::HeartbeatRequest& request, Clock::Wall now, Changes& changes) const {
  for (const v1::Receipt& receipt : request.receipts()) {
    for (const v1::Residue& residue : receipt.residues()) {
      if (!residue.has_device()) continue;
      const DeviceId device = id_of(request.node(), residue.device());
      if (!record_of(device).quarantine().empty() || changes.count(device) != 0) continue;
      DeviceRecord record = record_of(device);
      set_quarantine(record,
                     absl::StrCat("left by ", receipt.job(), " epoch ", receipt.epoch(), ": ", residue.message()), now);
      record.set_job(receipt.job());
      record.set_epoch(receipt.epoch());
      changes[device] = std::move(record);
    }
  }
  for (const auto& entry : records_) {
    const DeviceId& device = entry.first;  // No structured binding: clang before 16 captures none.
    const DeviceRecord& record = entry.second;
    if (device.node != request.node() || record.quarantine().empty() || !record.code().empty()) continue;
    const bool left = std::any_of(request.receipts().begin(), request.receipts().end(),
                                  [&](const v1::Receipt& receipt) { return residue_on(receipt, device) != nullptr; });
    if (left || has_ranks(request, record.job(), record.epoch())) continue;
    changes[device] = record;
    clear_quarantine(changes[device]);
  }
}

DeviceWatch::Judgement DeviceWatch::judge(const v1::HeartbeatRequest& request, Clock::Wall now) const {
  Judgement judgement;
  judge_faults(request, now, judgement);
  judge_residues(request, now, judgement.changes);
  return judgement;
}

DeviceWatch::Changes DeviceWatch::without_receipt(const std::string& node, const v1::Device& device, const v1::Job& job,
                                                  Clock::Wall now) const {
  const DeviceId id = id_of(node, device);
  DeviceRecord record = record_of(id);
  if (!record.quarantine().empty()) return {};
  set_quarantine(record,
                 absl::StrCat("node ", node, " never said that ", job.name(), " epoch ", job.epoch(), " is gone"), now);
  record.set_job(job.name());
  record.set_epoch(job.epoch());
  return {{id, record}};
}

absl::StatusOr<DeviceWatch::Changes> DeviceWatch::release(const DeviceId& device) const {
  DeviceRecord record = record_of(device);
  if (record.quarantine().empty()) return Changes{};
  if (const auto found = present_.find(device); found != present_.end()) {
    return error(absl::StatusCode::kFailedPrecondition, "STILL_THERE",
                 absl::StrCat("node '", device.node, "' ", v1::ResourceSpec::Kind_Name(device.kind), " ", device.index,
                              ": its worker still reports ", found->second, "; reset or replace it first"));
  }
  clear_quarantine(record);
  return Changes{{device, record}};
}

std::vector<store::SettingRow> DeviceWatch::rows(const Changes& changes) {
  std::vector<store::SettingRow> rows;
  for (const auto& [device, record] : changes) rows.push_back({key_of(device), record.SerializeAsString()});
  return rows;
}

void DeviceWatch::apply(const Changes& changes) {
  for (const auto& [device, record] : changes) {
    records_[device] = record;
    if (record.quarantine().empty()) {
      quarantine_->clear(device);
    } else {
      quarantine_->set(device, {record.quarantine(), cluster::to_wall(record.time())});
    }
  }
}

void DeviceWatch::follow(const v1::HeartbeatRequest& request, Clock::Wall now) {
  std::erase_if(present_, [&](const auto& entry) { return entry.first.node == request.node(); });
  for (const v1::DeviceHealth& health : request.health()) {
    const DeviceId device = id_of(request.node(), health.device());
    quarantine_->set_stale(device, health.state() == v1::DeviceHealth::STALE, now);
    if (health.state() != v1::DeviceHealth::FAILED) continue;
    std::string& what = present_[device];
    for (const v1::DeviceFault& fault : health.faults()) {
      if (rule_of(fault.code()).cause == FaultRule::Cause::kDevice) what = in_words(fault, 1);
    }
    if (what.empty()) what = "a fault";
  }
  for (const v1::Receipt& receipt : request.receipts()) {
    for (const v1::Residue& residue : receipt.residues()) {
      if (residue.has_device()) present_[id_of(request.node(), residue.device())] = residue.message();
    }
  }
}

}  // namespace telar::server::jobs
