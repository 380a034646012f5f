// Brings what ranks write to the coordinator: every byte of the log and every event, once, in order, whatever restarts.
//
// It has a thread of its own, so that a slow coordinator delays output and nothing else. Offsets make repeats harmless;
// where the coordinator's word differs from ours, the coordinator's wins. It also feeds the events to the metrics, each
// once in the life of this object.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/line.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "worker/agent/event_file.h"
#include "worker/agent/log_limit.h"
#include "worker/agent/pace_book.h"
#include "worker/agent/rank_dir.h"
#include "worker/metrics/daemon_metrics.h"
#include "worker/metrics/rank_metrics.h"

namespace telar::agent {

struct ShipperConfig {
  uint64_t log_limit = 0;  // Bytes of one rank's log that stay on the disk; 0: all.
  // A coordinator without room for logs is asked again for so long after a rank's end; then the rest counts as lost.
  std::chrono::milliseconds full_patience{30'000};
};

// Thread safe. `line`, `metrics` and what `on_shipped` uses must outlive it.
class Shipper {
 public:
  // `on_shipped` is called from the thread when shipped() of some rank has become true.
  Shipper(const Line<v1::Cluster>* line, std::string node, ShipperConfig config, metrics::RankMetrics* metrics,
          metrics::DaemonMetrics* daemon_metrics, std::function<void()> on_shipped);
  ~Shipper();  // Ends at once, also in the middle of a call; the next daemon goes on from there.
  Shipper(const Shipper&) = delete;
  Shipper& operator=(const Shipper&) = delete;

  // Shown every event, too. Before the first add(); it must outlive this.
  void set_paces(PaceBook* paces) { paces_ = paces; }
  void add(const RankKey& key, const RankDir& directory);
  void close(const RankKey& key);          // No process writes to the files any more.
  bool shipped(const RankKey& key) const;  // Closed, and all is acknowledged or its epoch is over.
  void remove(const RankKey& key);         // Stops; what is not shipped yet is not shipped.

 private:
  struct Rank;
  enum class Progress { kIdle, kMore };

  void run();
  Progress pass(Rank& rank);
  Progress feed_metrics(Rank& rank);
  Progress ship_events(Rank& rank);
  Progress ship_log(Rank& rank);
  // One frame from log_offset on, or what is missing there. OK: the offset has moved on.
  grpc::Status ship_piece(Rank& rank, LogFile::Piece piece);
  // The coordinator had no room for too long: the rest of the log is told of as lost.
  bool gives_up(const Rank& rank) const;
  // Notes what a failed call means for the rank: its epoch is over, or a pause.
  void take_failure(Rank& rank, const grpc::Status& status, const char* what);
  template <typename Request, typename Response>
  grpc::Status call(grpc::Status (v1::Cluster::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response);

  const Line<v1::Cluster>* const line_;
  const std::string node_;
  const ShipperConfig config_;
  metrics::RankMetrics* const metrics_;
  std::atomic<PaceBook*> paces_{nullptr};
  metrics::DaemonMetrics* const daemon_metrics_;
  const std::function<void()> on_shipped_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;                           // Guarded by mutex_, as are the next two.
  std::map<RankKey, std::shared_ptr<Rank>> ranks_;  // Shared with the pass that is under way.
  grpc::ClientContext* in_flight_ = nullptr;
  std::thread thread_;
};

}  // namespace telar::agent
