// The worker daemon's core: what the coordinator wishes, made so on this node.
//
//   CoordinatorLink -- assignments --> [reconcile loop: RankTable] -- status --> CoordinatorLink
//                                          |-> Spawner (processes)   |-> Shipper (logs, events)
// The loop is one thread that never waits for the network.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <prometheus/registry.h>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/line.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/flight_reporter.h"
#include "worker/agent/probe.h"
#include "worker/agent/rank_table.h"

namespace telar::agent {

struct AgentConfig {
  std::string coordinator;  // host:port
  v1::RegisterNodeRequest self;
  RankTableConfig ranks;
  ProbeConfig probe;
  ShipperConfig shipper;
  std::chrono::milliseconds revoked_grace{10'000};  // From SIGTERM to SIGKILL for the ranks of a revoked node.
  std::chrono::milliseconds tick{100};
};

// Thread safe. `state`, `spawner` and `registry` must outlive it.
class Agent {
 public:
  // `on_beat` is called by the loop each time round: the watchdog's proof of life. `on_failure` is called once, from
  // the loop, when status() has become an error; the loop has then ended.
  Agent(AgentConfig config, const StateDir* state, Spawner* spawner, prometheus::Registry* registry,
        std::function<void()> on_beat, std::function<void()> on_failure);
  ~Agent();  // Leaves ranks as they are.
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Adopts, begins the loop and dials.
  void start();
  bool wait_first_registration(std::chrono::milliseconds longest) { return link_->wait_first_attempt(longest); }
  // Stops every rank (SIGTERM, SIGKILL after checkpoint.stop_grace_seconds of its job, or else `grace`) and starts no
  // more; returns when all are gone, their output is shipped and the coordinator was told that nothing is left, or 5
  // seconds after the longest grace. Without an answer to that last word, after 3 seconds more.
  void stop_ranks(std::chrono::milliseconds grace);
  absl::Status status() const;
  // Whether this node may be trusted with work: status(), and its devices can be told of.
  absl::Status readiness() const;

 private:
  void run();
  void take_assignments(v1::HeartbeatResponse response);
  // Whoever registers tells what there is, and must not start anything behind that which it was told before: the
  // coordinator may have given the device to somebody else.
  void drop_assignments();
  // What runs here runs for nobody: it stops, and nothing starts before this node is let in again.
  void take_revocation();
  void wake();
  // Writes down for each rank that is here what steps of it are wanted.
  void tell_ranks(const std::vector<v1::TraceWish>& wishes) const;
  NodeStatus node_status(bool ending) const;

  const AgentConfig config_;
  const RealClock clock_;
  const std::function<void()> on_beat_, on_failure_;
  metrics::DaemonMetrics daemon_metrics_;
  metrics::DeviceMetrics device_metrics_;
  metrics::RankMetrics rank_metrics_;
  PaceBook paces_{&clock_};
  Line<v1::Cluster> line_;
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<Shipper> shipper_;
  std::unique_ptr<FlightReporter> flights_;
  Probe probe_;  // The loop's own after start(), as is the next.
  RankTable table_;

  mutable std::mutex mutex_;  // Guards all below but the thread.
  std::condition_variable wake_;
  bool woken_ = false;
  bool stopping_ = false;
  bool stale_ = false;  // The probe's word.
  bool over_ = false;   // After stop_ranks: no process, nothing to ship.
  bool revoked_ = false;
  std::optional<std::chrono::milliseconds> stop_ranks_;
  std::chrono::milliseconds longest_grace_{0};
  std::optional<std::vector<v1::Assignment>> wish_;  // None before the first word since registering.
  std::vector<v1::FlightWish> flight_wishes_;
  std::vector<v1::TraceWish> trace_wishes_;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace telar::agent
