// Answers the coordinator's wish for the flight records of ranks of this node, because their gang hangs.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/line.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "worker/agent/rank_dir.h"

namespace telar::agent {

// The last calls of a rank, and how its process stands; its threads as far as /proc tells. Reads files only, so it
// works on a process that is stopped.
v1::FlightRecord make_flight_record(const RankDir& directory);

// Thread safe; sends from a thread of its own. A wish that cannot be fulfilled now is dropped: it comes again with the
// next answer to a heartbeat for as long as it holds.
class FlightReporter {
 public:
  FlightReporter(const Line<v1::Cluster>* line, std::string node);  // `line` must outlive it.
  ~FlightReporter();                                                // At once, also in the middle of a call.
  FlightReporter(const FlightReporter&) = delete;
  FlightReporter& operator=(const FlightReporter&) = delete;

  void wish(const RankKey& key, const RankDir& directory);

 private:
  void run();
  void report(const RankKey& key, const RankDir& directory);

  const Line<v1::Cluster>* const line_;
  const std::string node_;
  std::mutex mutex_;  // Guards all below but the thread.
  std::condition_variable wake_;
  bool stopping_ = false;
  std::map<RankKey, RankDir> wishes_;
  grpc::ClientContext* in_flight_ = nullptr;
  std::thread thread_;
};

}  // namespace telar::agent
