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
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/cluster/inventory.h"
#include "server/cluster/quarantine.h"
#include "telar/v1/cluster.pb.h"

namespace telar::server::cluster {

// READY until half the lease passes without a message, then UNKNOWN, then, at the lease, LOST until it registers again.
// OFFLINE, which counts as lost, once its worker has said goodbye.
class Cluster {
 public:
  Cluster(const Clock* clock, std::chrono::milliseconds lease) : clock_(clock), lease_(lease), start_(clock->now()) {}

  // A new incarnation replaces the old one, unless that one still has an open stream and a lease (ALREADY_EXISTS).
  // Returns the number of the registration, which is another one each time.
  absl::StatusOr<uint64_t> register_node(const v1::RegisterNodeRequest& request);
  // The Heartbeat stream of an incarnation opened or closed.
  void set_connected(const std::string& node, const std::string& incarnation, bool connected);
  // Renews the lease. FAILED_PRECONDITION: not the current incarnation or registration (0: of a worker that knows of
  // none), or its lease ran out; register again.
  // `strangers`: it runs ranks that nobody assigned to it; it gets no new ones until they are gone.
  absl::Status heartbeat(const std::string& node, const std::string& incarnation, bool strangers,
                         uint64_t registration = 0);
  // The worker of that registration (0: whichever) ends: its node gets nothing new. `gone`: nothing is left there, and
  // the lease ends now. Until it registers again.
  void leave(const std::string& node, uint64_t registration, bool gone);
  bool leaving(const std::string& node) const;
  // The nodes whose lease ran out since the last call.
  std::vector<std::string> expire();

  // Whether the node gets anything new: OPEN, CORDONED or DRAINING, and why. Holds for nodes that are not there yet,
  // too.
  void set_scheduling(const std::string& node, v1::Node::Scheduling scheduling, const std::string& reason);
  v1::Node::Scheduling scheduling(const std::string& node) const;  // As it was set.
  bool known(const std::string& node) const;                       // It registered since the start, or is closed.

  // Every device and who holds it, as of now. Its devices are in the order of the nodes' names and their own.
  Inventory inventory() const;
  // The device with that number in an inventory that was made since the last registration.
  Slot slot(const Inventory& inventory, uint32_t device) const;
  void hold(const std::string& node, const v1::Device& device, const std::string& job);
  void release(const std::string& job);
  // Devices in it are not given out, whoever holds them.
  Quarantine& quarantine() { return quarantine_; }
  const Quarantine& quarantine() const { return quarantine_; }

  struct Count {
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

  // Grows whenever who may have which device changes, but for what time alone does.
  uint64_t version() const { return version_ + quarantine_.version(); }

  // No rank of it is heard of any more. Also true for a node not seen within a lease of the start.
  bool lost(const std::string& node) const;
  std::string listen_host(const std::string& node) const;
  std::vector<v1::Node> nodes() const;           // In order of name.
  v1::Node node(const std::string& name) const;  // Of a known one.
  // The same, as it were with that scheduling.
  v1::Node node(const std::string& name, v1::Node::Scheduling scheduling, const std::string& reason) const;
  std::vector<std::string> metrics_addresses() const;

 private:
  struct Member {
    v1::RegisterNodeRequest info;
    Clock::Wall registered;
    Clock::Wall heard_wall;
    Clock::Steady heard;
    uint64_t registration = 0;
    int streams = 0;        // Open Heartbeat streams; two for a moment when a worker dials anew.
    bool reported = false;  // A heartbeat of this incarnation said what runs there.
    bool strangers = false;
    bool away = false;  // Its last stream ended; until the next heartbeat.
    bool lost = false;  // Latched by expire().
    bool leaving = false;
    bool gone = false;
  };
  using DeviceKey = std::pair<v1::ResourceSpec::Kind, uint32_t>;

  v1::Node::State state(const Member& member) const;
  bool over(const Member& member) const {  // It has to register again.
    return state(member) == v1::Node::LOST || state(member) == v1::Node::OFFLINE;
  }
  bool ready(const Member& member) const {  // Its free devices may be given out.
    return state(member) == v1::Node::READY && member.reported && !member.away && !member.strangers && !member.leaving;
  }
  void add_to(Inventory& inventory, const Member& member) const;

  const Clock* const clock_;
  const std::chrono::milliseconds lease_;
  const Clock::Steady start_;
  uint64_t version_ = 1;
  uint64_t registrations_ = 0;
  std::map<std::string, Member> members_;
  std::map<v1::ResourceSpec::Kind, Count> counts_;                   // Of all members.
  std::map<std::string, std::map<DeviceKey, std::string>> holders_;  // node -> device -> job
  Quarantine quarantine_;
  struct Closed {
    v1::Node::Scheduling scheduling = v1::Node::OPEN;
    std::string reason;
  };
  std::map<std::string, Closed> closed_;  // Nodes that get nothing new.
};

}  // namespace telar::server::cluster
