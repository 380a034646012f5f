// The ranks of this node: what should run against what does, and the way from one to the other.
//
// Level-triggered: reconcile() takes the whole wish, tick() makes the next steps towards it, and both may be called as
// often as one likes. Nothing here waits or knows of a network.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "telar/v1/cluster.pb.h"
#include "worker/agent/clean_end.h"
#include "worker/agent/pace_book.h"
#include "worker/agent/probe.h"
#include "worker/agent/rank_dir.h"
#include "worker/agent/shipper.h"
#include "worker/agent/spawner.h"
#include "worker/metrics/daemon_metrics.h"
#include "worker/metrics/rank_metrics.h"

namespace telar::agent {

struct RankTableConfig {
  std::string rank_program;
  uint32_t default_threads = 1;  // For a plan that does not say.
  int keep_finished = 20;        // Directories of ranks that are over.
  std::string device_files;      // "/dev/nvidia": with its index behind it, a device's file. Empty: they have none.
  std::chrono::milliseconds residue_after{10'000};  // What does not go within that long after the end is told of.
};

// Used by one thread. What it points to must outlive it. `probe` says how much of a device is in use.
class RankTable {
 public:
  RankTable(RankTableConfig config, const StateDir* state, Spawner* spawner, Shipper* shipper, const Probe* probe,
            metrics::RankMetrics* rank_metrics, metrics::DaemonMetrics* daemon_metrics, const Clock* clock);

  // Told of every rank, and asked for the statuses. Before adopt(); it must outlive this.
  void set_paces(PaceBook* paces) { paces_ = paces; }
  // Where a rank that is here has its files.
  std::optional<RankDir> directory(const RankKey& key) const;

  // Takes over what a former daemon left: living ranks run on, dead ones are EXITED. Call once, first.
  void adopt();
  // Starts what is missing, begins to stop what shall stop, kills what nobody names. A rank waits while one of an
  // older epoch of its job still lives, or any other on its device, or something of it is left there.
  void reconcile(const std::vector<v1::Assignment>& wish);
  // Looks after every rank: ends, graces that ran out, directories to let go. UNAVAILABLE: the spawner is gone.
  absl::Status tick();
  std::vector<v1::RankStatus> statuses() const;
  // Of every epoch whose ranks here are all over, as soon as nothing of them is left or what is left will not go.
  std::vector<v1::Receipt> receipts() const;
  // From now on only what is to stop is obeyed.
  void start_no_more() { starts_ = false; }
  // SIGTERM to every rank now, SIGKILL after the grace: the one that its job asks for, or else this. Returns the
  // longest.
  std::chrono::milliseconds stop_all(std::chrono::milliseconds grace);
  bool all_over() const;      // No process is left and all output is shipped.
  bool nothing_left() const;  // Nor any trace, as the receipts of all say.

 private:
  using Steady = Clock::Steady;
  struct Rank {
    Rank(v1::RankPlan its_plan, RankDir its_directory)
        : plan(std::move(its_plan)), directory(std::move(its_directory)) {}
    v1::RankPlan plan;
    RankDir directory;
    std::optional<ProcessFamily> family;  // Of a started rank.
    v1::RankStatus status;
    bool abandoned = false;               // Nobody names it: kill and forget.
    bool never_started = false;           // A stop order for something that is not here; no directory.
    std::optional<Steady> kill_at;        // SIGTERM was sent; then this.
    std::optional<Steady> killing_since;  // SIGKILL was sent.
    // Of a rank that is over: since when, what is left of it, and whether that is settled.
    std::optional<Steady> over_since;
    std::vector<v1::Residue> residues;
    bool told = false;
    std::optional<Steady> looked;  // When somebody last looked.

    bool clean() const { return told && residues.empty(); }
    bool running() const { return status.state() == v1::RankPlacement::RUNNING; }
  };

  void start(const v1::RankPlan& plan);
  absl::StatusOr<RankProcess> launch(const v1::RankPlan& plan, const RankDir& directory);
  // For a stop order (why is OK) or a plan that nothing can be started from.
  void add_never_started(const v1::RankPlan& plan, const absl::Status& why);
  void stop(Rank& rank, std::chrono::milliseconds grace);
  bool blocked(const v1::RankPlan& plan) const;
  absl::Status advance(Rank& rank);
  // Looks whether the end of a rank that is over is a clean one.
  void watch_end(Rank& rank);
  EndFacts facts_of(const Rank& rank) const;
  void set_exited(Rank& rank, bool count);
  void forget(Rank& rank);
  Rank& insert(v1::RankPlan plan, RankDir directory);

  const RankTableConfig config_;
  const StateDir* const state_;
  Spawner* const spawner_;
  Shipper* const shipper_;
  const Probe* const probe_;
  metrics::RankMetrics* const rank_metrics_;
  metrics::DaemonMetrics* const daemon_metrics_;
  const Clock* const clock_;
  PaceBook* paces_ = nullptr;
  std::map<RankKey, Rank> ranks_;
  bool starts_ = true;
  absl::Status spawner_lost_;
};

// The end of a rank in the coordinator's terms. `exit` is absent when the process went unseen (the machine restarted,
// or the spawner died). A RankFailure event wins over the code; else the message is "killed by signal 9 (SIGKILL)" or
// "exit code 3", with the last line of the log.
v1::RankStatus describe_end(const RankDir& directory, const std::optional<RankExit>& exit);

}  // namespace telar::agent
