// The nodes, their leases and devices, and who holds which device.
//
// Not thread-safe: the job manager calls it under its own lock. Knows no job beyond its name, keeps nothing on disk:
// after a restart of the coordinator every node registers again, and the manager says anew who holds what.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "server/cluster/placement.h"
#include "telar/v1/cluster.pb.h"

namespace telar::server::cluster {

// READY until half the lease passes without a message, then UNKNOWN, then, at the lease, LOST until it registers again.
class Cluster {
 public:
  Cluster(const Clock* clock, std::chrono::milliseconds lease) : clock_(clock), lease_(lease), start_(clock->now()) {}

  // A new incarnation replaces the old one, unless that one still has an open stream and a lease (ALREADY_EXISTS).
  absl::Status register_node(const v1::RegisterNodeRequest& request);
  // The Heartbeat stream of an incarnation opened or closed.
  void set_connected(const std::string& node, const std::string& incarnation, bool connected);
  // Renews the lease. FAILED_PRECONDITION: not the current incarnation, or its lease ran out; register again.
  // `strangers`: it runs ranks that nobody assigned to it; it gets no new ones until they are gone.
  absl::Status heartbeat(const std::string& node, const std::string& incarnation, bool strangers);
  // The nodes whose lease ran out since the last call.
  std::vector<std::string> expire();

  // Devices that a job may have now: on a READY node that has reported what runs there.
  // Never on one of the nodes `without`.
  std::optional<std::vector<Slot>> find(v1::ResourceSpec::Kind kind, const GangShape& shape,
                                        const std::set<std::string>& without = {}) const;
  void hold(const std::string& node, const v1::Device& device, const std::string& job);
  void release(const std::string& job);

  struct Count {
    uint32_t free = 0;        // May be given out now.
    uint32_t ready = 0;       // On READY nodes.
    uint32_t registered = 0;  // On all nodes known since the start.
  };
  Count count(v1::ResourceSpec::Kind kind) const;

  // What tensor-parallel groups of that many ranks could have if nothing ran, on all nodes known since the start.
  struct Room {
    uint64_t groups = 0;  // Each inside one NVLink domain.
    uint32_t widest = 0;  // Devices of the largest domain.
    std::string node;     // Where that is; the first by name.
  };
  Room room(v1::ResourceSpec::Kind kind, uint32_t tensor) const;

  bool lost(const std::string& node) const;  // Also true for a node not seen within a lease of the start.
  std::string listen_host(const std::string& node) const;
  std::vector<v1::Node> nodes() const;  // In order of name.
  std::vector<std::string> metrics_addresses() const;

 private:
  struct Member {
    v1::RegisterNodeRequest info;
    Clock::Wall registered;
    Clock::Wall heard_wall;
    Clock::Steady heard;
    int streams = 0;        // Open Heartbeat streams; two for a moment when a worker dials anew.
    bool reported = false;  // A heartbeat of this incarnation said what runs there.
    bool strangers = false;
    bool lost = false;  // Latched by expire().
  };
  using DeviceKey = std::pair<v1::ResourceSpec::Kind, uint32_t>;

  v1::Node::State state(const Member& member) const;
  const std::string& holder(const std::string& node, const v1::Device& device) const;
  std::vector<v1::Device> free_devices(const Member& member, v1::ResourceSpec::Kind kind) const;

  const Clock* const clock_;
  const std::chrono::milliseconds lease_;
  const Clock::Steady start_;
  std::map<std::string, Member> members_;
  std::map<std::string, std::map<DeviceKey, std::string>> holders_;  // node -> device -> job
};

}  // namespace telar::server::cluster
