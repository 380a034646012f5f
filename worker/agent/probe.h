// The daemon's end of telar-probe: starts it, hears its reports, kills it when it is late, and starts it again.
//
// Level-triggered and never waiting, as rank_table.h: tick() does what can be done now.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "telar/v1/cluster.pb.h"
#include "worker/agent/rank_dir.h"
#include "worker/agent/spawner.h"
#include "worker/metrics/device_metrics.h"
#include "worker/probe/report.h"

namespace telar::agent {

struct ProbeConfig {
  std::string program;              // telar-probe; empty: there is no probe, and no health.
  std::string library;              // Of the driver.
  std::vector<v1::Device> devices;  // Those of this node; the probe's device of the same index tells of them.
  std::chrono::milliseconds interval{1'000};
  std::chrono::milliseconds deadline{10'000};                           // For a round, and for the first one.
  std::chrono::milliseconds first_pause{1'000}, longest_pause{60'000};  // Before it is started again.
};

// Used by one thread. What it points to must outlive it.
class Probe {
 public:
  Probe(ProbeConfig config, const StateDir& state, Spawner* spawner, metrics::DeviceMetrics* metrics,
        const Clock* clock);
  ~Probe();  // Kills it, and waits a moment for its end.
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  void tick();
  // One entry a device; nothing without a probe, or before the first round came back or was missed.
  std::vector<v1::DeviceHealth> health() const;
  bool stale() const { return stale_; }
  int pid() const { return process_ ? process_->id.pid : 0; }  // 0: it does not run.

  struct Use {
    uint64_t bytes = 0;
    std::vector<int> pids;
    Clock::Steady time;  // Of the reading.
  };
  // Absent when nobody can tell: no probe, or its telemetry is stale.
  std::optional<Use> use(const v1::Device& device) const;

 private:
  struct Known {
    v1::Device device;
    std::map<std::string, uint64_t> counts, counts_of_this_probe;
    std::map<std::string, Clock::Wall> last;
    std::set<std::string> holding;
    std::optional<Use> use;
  };

  void start();
  absl::Status listen();
  void accept_probe();
  void read_reports();
  void take(const probe::Report& report);
  void take(const probe::DeviceReading& reading, Known& known);
  // It is late, or has ended: kills it, and sets when the next one is started.
  void restart(const std::string& why);
  void kill_process();
  bool is_dying();

  const ProbeConfig config_;
  const RankDir directory_;
  Spawner* const spawner_;
  metrics::DeviceMetrics* const metrics_;
  const Clock* const clock_;
  std::vector<Known> known_;
  bool heard_ = false;  // Once in this life, or missed.
  bool stale_ = false;
  int listener_ = -1, connection_ = -1;
  std::string socket_name_;
  std::optional<RankProcess> process_;
  std::optional<RankProcess> dying_;  // Killed. One that the driver holds is not joined by a second one.
  Clock::Steady due_;                 // The next report; or, without a process, the next start.
  std::chrono::milliseconds pause_{0};
};

}  // namespace telar::agent
