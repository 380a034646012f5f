#include "server/cluster/cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/cluster/times.h"

namespace telar::server::cluster {

v1::Node::State Cluster::state(const Member& member) const {
  if (member.gone) return v1::Node::OFFLINE;
  const auto silent = clock_->now() - member.heard;
  if (member.lost || silent >= lease_) return v1::Node::LOST;
  return silent * 2 >= lease_ ? v1::Node::UNKNOWN : v1::Node::READY;
}

absl::StatusOr<uint64_t> Cluster::register_node(const v1::RegisterNodeRequest& request) {
  const auto found = members_.find(request.node());
  if (found != members_.end()) {
    const Member& old = found->second;
    if (old.streams > 0 && old.info.incarnation() != request.incarnation() && !over(old)) {
      return error(absl::StatusCode::kAlreadyExists, "NODE_NAME_TAKEN",
                   absl::StrCat("node '", request.node(), "': another live worker has this name (incarnation ",
                                old.info.incarnation(), "); stop it or choose another --node"));
    }
  }
  Member member;
  member.info = request;
  member.registered = clock_->wall();
  member.heard_wall = member.registered;
  member.heard = clock_->now();
  if (found != members_.end() && found->second.info.incarnation() == request.incarnation()) {
    member.streams = found->second.streams;
  }
  member.registration = ++registrations_;
  if (found != members_.end()) {
    for (const v1::Device& device : found->second.info.devices()) --counts_[device.kind()].registered;
  }
  for (const v1::Device& device : request.devices()) ++counts_[device.kind()].registered;
  members_[request.node()] = std::move(member);
  ++version_;
  return registrations_;
}

void Cluster::set_connected(const std::string& node, const std::string& incarnation, bool connected) {
  const auto found = members_.find(node);
  if (found != members_.end() && found->second.info.incarnation() == incarnation) {
    const bool before = ready(found->second);
    found->second.streams += connected ? 1 : -1;
    found->second.away = found->second.streams == 0;
    if (before != ready(found->second)) ++version_;
  }
}

absl::Status Cluster::heartbeat(const std::string& node, const std::string& incarnation, bool strangers,
                                uint64_t registration) {
  const auto found = members_.find(node);
  if (found == members_.end() || found->second.info.incarnation() != incarnation) {
    return error(
        absl::StatusCode::kFailedPrecondition, "NOT_REGISTERED",
        absl::StrCat("node '", node, "': incarnation '", incarnation, "' is not the current one; register again"));
  }
  Member& member = found->second;
  if (registration != 0 && registration != member.registration) {
    return error(absl::StatusCode::kFailedPrecondition, "NOT_REGISTERED",
                 absl::StrCat("node '", node, "': it has registered again since this was said"));
  }
  if (over(member)) {
    const char* const why = member.gone ? "it said goodbye" : "its lease ran out";
    return error(absl::StatusCode::kFailedPrecondition, "LEASE_EXPIRED",
                 absl::StrCat("node '", node, "': ", why, "; register again"));
  }
  const bool before = ready(member);
  member.heard = clock_->now();
  member.heard_wall = clock_->wall();
  member.reported = true;
  member.away = false;
  member.strangers = strangers;
  if (before != ready(member)) ++version_;
  return absl::OkStatus();
}

void Cluster::leave(const std::string& node, uint64_t registration, bool gone) {
  const auto found = members_.find(node);
  if (found == members_.end() || (registration != 0 && registration != found->second.registration)) return;
  Member& member = found->second;
  member.leaving = true;
  member.gone = member.gone || gone;
  ++version_;
}

bool Cluster::leaving(const std::string& node) const {
  const auto found = members_.find(node);
  return found != members_.end() && found->second.leaving;
}

std::vector<std::string> Cluster::expire() {
  std::vector<std::string> names;
  for (auto& [name, member] : members_) {
    if (member.lost || state(member) != v1::Node::LOST) continue;
    member.lost = true;
    ++version_;
    names.push_back(name);
  }
  return names;
}

void Cluster::set_scheduling(const std::string& node, v1::Node::Scheduling scheduling, const std::string& reason) {
  ++version_;
  if (scheduling == v1::Node::OPEN) {
    closed_.erase(node);
  } else {
    closed_[node] = {scheduling == v1::Node::DRAINED ? v1::Node::DRAINING : scheduling, reason};
  }
}

v1::Node::Scheduling Cluster::scheduling(const std::string& node) const {
  const auto found = closed_.find(node);
  return found == closed_.end() ? v1::Node::OPEN : found->second.scheduling;
}

bool Cluster::known(const std::string& node) const { return members_.count(node) != 0 || closed_.count(node) != 0; }

void Cluster::add_to(Inventory& inventory, const Member& member) const {
  static const std::map<DeviceKey, std::string> kNone;
  const std::string& name = member.info.node();
  Inventory::Node& node = inventory.nodes.emplace_back();
  node.name = name;
  node.labels = {member.info.labels().begin(), member.info.labels().end()};
  node.ready = ready(member);
  node.open = closed_.count(name) == 0;
  node.spare = member.info.spare();
  node.first = static_cast<uint32_t>(inventory.devices.size());
  node.count = static_cast<uint32_t>(member.info.devices_size());
  const auto found = holders_.find(name);
  const auto& holders = found == holders_.end() ? kNone : found->second;
  std::map<std::pair<v1::ResourceSpec::Kind, uint32_t>, uint32_t> domains;
  for (const v1::Device& device : member.info.devices()) {
    const auto domain = domains.try_emplace({device.kind(), device.nvlink_domain()}, inventory.domains);
    if (domain.second) ++inventory.domains;
    const auto holder = holders.find({device.kind(), device.index()});
    inventory.devices.push_back({.node = static_cast<uint32_t>(inventory.nodes.size()) - 1,
                                 .domain = domain.first->second,
                                 .kind = device.kind(),
                                 .index = device.index(),
                                 .holder = holder == holders.end() ? "" : holder->second,
                                 .quarantined = quarantine_.find(id_of(name, device)) != nullptr});
  }
}

Inventory Cluster::inventory() const {
  Inventory inventory;
  inventory.nodes.reserve(members_.size());
  for (const auto& [name, member] : members_) add_to(inventory, member);
  return inventory;
}

Slot Cluster::slot(const Inventory& inventory, uint32_t device) const {
  const Inventory::Device& one = inventory.devices[device];
  const Inventory::Node& node = inventory.nodes[one.node];
  return {node.name, members_.at(node.name).info.devices(static_cast<int>(device - node.first))};
}

void Cluster::hold(const std::string& node, const v1::Device& device, const std::string& job) {
  holders_[node][{device.kind(), device.index()}] = job;
  ++version_;
}

void Cluster::release(const std::string& job) {
  for (auto& [node, devices] : holders_) {
    if (std::erase_if(devices, [&job](const auto& entry) { return entry.second == job; }) > 0) ++version_;
  }
}

Cluster::Count Cluster::count(v1::ResourceSpec::Kind kind) const {
  const auto found = counts_.find(kind);
  return found == counts_.end() ? Count() : found->second;
}

Cluster::Room Cluster::room(v1::ResourceSpec::Kind kind, uint32_t tensor) const {
  Room room;
  for (const auto& [name, member] : members_) {
    std::vector<v1::Device> devices;
    for (const v1::Device& device : member.info.devices()) {
      if (device.kind() == kind) devices.push_back(device);
    }
    room.groups += groups_in(devices, tensor);
    const uint32_t widest = widest_domain(devices);
    if (widest <= room.widest) continue;
    room.widest = widest;
    room.node = name;
  }
  return room;
}

bool Cluster::lost(const std::string& node) const {
  const auto found = members_.find(node);
  if (found == members_.end()) return clock_->now() - start_ >= lease_;
  return over(found->second);
}

std::string Cluster::listen_host(const std::string& node) const {
  const auto found = members_.find(node);
  return found == members_.end() ? "" : found->second.info.listen_host();
}

v1::Node Cluster::node(const std::string& name) const {
  const auto closed = closed_.find(name);
  return closed == closed_.end() ? node(name, v1::Node::OPEN, "")
                                 : node(name, closed->second.scheduling, closed->second.reason);
}

v1::Node Cluster::node(const std::string& name, v1::Node::Scheduling scheduling, const std::string& reason) const {
  v1::Node node;
  node.set_name(name);
  node.set_scheduling(scheduling);
  node.set_scheduling_reason(scheduling == v1::Node::OPEN ? "" : reason);
  const auto found = holders_.find(name);
  static const std::map<DeviceKey, std::string> kNone;
  const auto& holders = found == holders_.end() ? kNone : found->second;
  if (node.scheduling() == v1::Node::DRAINING && holders.empty()) node.set_scheduling(v1::Node::DRAINED);
  node.set_state(v1::Node::LOST);
  const auto known = members_.find(name);
  if (known == members_.end()) return node;  // Closed, and not seen since the start.
  const Member& member = known->second;
  node.set_state(state(member));
  node.set_version(member.info.version());
  node.set_metrics_address(member.info.metrics_address());
  node.set_incarnation(member.info.incarnation());
  *node.mutable_register_time() = to_timestamp(member.registered);
  *node.mutable_heartbeat_time() = to_timestamp(member.heard_wall);
  *node.mutable_labels() = member.info.labels();
  node.set_spare(member.info.spare());
  for (const v1::Device& device : member.info.devices()) {
    v1::DeviceStatus* status = node.add_devices();
    *status->mutable_device() = device;
    const auto holder = holders.find({device.kind(), device.index()});
    if (holder != holders.end()) status->set_job(holder->second);
    if (const Quarantine::Entry* entry = quarantine_.find(id_of(name, device))) {
      status->set_quarantine(entry->reason);
      *status->mutable_quarantine_time() = to_timestamp(entry->time);
    }
  }
  return node;
}

std::vector<v1::Node> Cluster::nodes() const {
  std::set<std::string> names;
  for (const auto& [name, member] : members_) names.insert(name);
  for (const auto& [name, closed] : closed_) names.insert(name);
  std::vector<v1::Node> nodes;
  nodes.reserve(names.size());
  for (const std::string& name : names) nodes.push_back(node(name));
  return nodes;
}

std::vector<std::string> Cluster::metrics_addresses() const {
  std::vector<std::string> addresses;
  for (const auto& [name, member] : members_) {
    if (!member.info.metrics_address().empty()) addresses.push_back(member.info.metrics_address());
  }
  return addresses;
}

}  // namespace telar::server::cluster
