#include "server/cluster/cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/cluster/times.h"

namespace telar::server::cluster {

v1::Node::State Cluster::state(const Member& member) const {
  const auto silent = clock_->now() - member.heard;
  if (member.lost || silent >= lease_) return v1::Node::LOST;
  return silent * 2 >= lease_ ? v1::Node::UNKNOWN : v1::Node::READY;
}

absl::Status Cluster::register_node(const v1::RegisterNodeRequest& request) {
  const auto found = members_.find(request.node());
  if (found != members_.end()) {
    const Member& old = found->second;
    if (old.streams > 0 && old.info.incarnation() != request.incarnation() && state(old) != v1::Node::LOST) {
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
  members_[request.node()] = std::move(member);
  return absl::OkStatus();
}

void Cluster::set_connected(const std::string& node, const std::string& incarnation, bool connected) {
  const auto found = members_.find(node);
  if (found != members_.end() && found->second.info.incarnation() == incarnation) {
    found->second.streams += connected ? 1 : -1;
  }
}

absl::Status Cluster::heartbeat(const std::string& node, const std::string& incarnation, bool strangers) {
  const auto found = members_.find(node);
  if (found == members_.end() || found->second.info.incarnation() != incarnation) {
    return error(
        absl::StatusCode::kFailedPrecondition, "NOT_REGISTERED",
        absl::StrCat("node '", node, "': incarnation '", incarnation, "' is not the current one; register again"));
  }
  Member& member = found->second;
  if (state(member) == v1::Node::LOST) {
    return error(absl::StatusCode::kFailedPrecondition, "LEASE_EXPIRED",
                 absl::StrCat("node '", node, "': its lease ran out; register again"));
  }
  member.heard = clock_->now();
  member.heard_wall = clock_->wall();
  member.reported = true;
  member.strangers = strangers;
  return absl::OkStatus();
}

std::vector<std::string> Cluster::expire() {
  std::vector<std::string> names;
  for (auto& [name, member] : members_) {
    if (member.lost || state(member) != v1::Node::LOST) continue;
    member.lost = true;
    names.push_back(name);
  }
  return names;
}

const std::string& Cluster::holder(const std::string& node, const v1::Device& device) const {
  static const std::string kNobody;
  const auto devices = holders_.find(node);
  if (devices == holders_.end()) return kNobody;
  const auto found = devices->second.find({device.kind(), device.index()});
  return found == devices->second.end() ? kNobody : found->second;
}

std::vector<v1::Device> Cluster::free_devices(const Member& member, v1::ResourceSpec::Kind kind) const {
  std::vector<v1::Device> devices;
  if (state(member) != v1::Node::READY || !member.reported || member.strangers) return devices;
  for (const v1::Device& device : member.info.devices()) {
    if (device.kind() == kind && holder(member.info.node(), device).empty()) devices.push_back(device);
  }
  return devices;
}

std::optional<std::vector<Slot>> Cluster::find(v1::ResourceSpec::Kind kind, const GangShape& shape,
                                               const std::set<std::string>& without) const {
  std::vector<FreeNode> free;
  for (const auto& [name, member] : members_) {
    if (without.count(name) == 0) free.push_back({name, free_devices(member, kind)});
  }
  return place(std::move(free), shape);
}

void Cluster::hold(const std::string& node, const v1::Device& device, const std::string& job) {
  holders_[node][{device.kind(), device.index()}] = job;
}

void Cluster::release(const std::string& job) {
  for (auto& [node, devices] : holders_) {
    std::erase_if(devices, [&job](const auto& entry) { return entry.second == job; });
  }
}

Cluster::Count Cluster::count(v1::ResourceSpec::Kind kind) const {
  Count count;
  for (const auto& [name, member] : members_) {
    const auto own =
        static_cast<uint32_t>(std::count_if(member.info.devices().begin(), member.info.devices().end(),
                                            [kind](const v1::Device& device) { return device.kind() == kind; }));
    count.registered += own;
    if (state(member) == v1::Node::READY) count.ready += own;
    count.free += static_cast<uint32_t>(free_devices(member, kind).size());
  }
  return count;
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
  return state(found->second) == v1::Node::LOST;
}

std::string Cluster::listen_host(const std::string& node) const {
  const auto found = members_.find(node);
  return found == members_.end() ? "" : found->second.info.listen_host();
}

std::vector<v1::Node> Cluster::nodes() const {
  std::vector<v1::Node> nodes;
  for (const auto& [name, member] : members_) {
    v1::Node node;
    node.set_name(name);
    node.set_state(state(member));
    node.set_version(member.info.version());
    node.set_metrics_address(member.info.metrics_address());
    node.set_incarnation(member.info.incarnation());
    *node.mutable_register_time() = to_timestamp(member.registered);
    *node.mutable_heartbeat_time() = to_timestamp(member.heard_wall);
    for (const v1::Device& device : member.info.devices()) {
      v1::DeviceStatus* status = node.add_devices();
      *status->mutable_device() = device;
      status->set_job(holder(name, device));
    }
    nodes.push_back(std::move(node));
  }
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
