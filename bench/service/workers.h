// Workers without processes: each is a node with devices of its own and a connection of its own. It registers, holds a
// heartbeat stream, takes what it is told to run for running, and reports a step a second of every rank. One thread
// drives all of them; gRPC's own threads take the answers.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "bench/service/latencies.h"

namespace telar::bench {

struct WorkerOptions {
  std::string coordinator;
  int count = 1000;
  int devices = 1;
  std::chrono::milliseconds heartbeat{2'000};
  std::chrono::milliseconds step{1'000};  // Zero: nothing is reported.
};

class SimulatedWorkers {
 public:
  // Returns when all have registered, or says which could not. `latencies` gets "heartbeat" and "report".
  static absl::StatusOr<std::unique_ptr<SimulatedWorkers>> start(const WorkerOptions& options, Latencies* latencies);
  ~SimulatedWorkers();

  size_t running_ranks() const;
  size_t lost_streams() const { return lost_; }

 private:
  class Worker;
  SimulatedWorkers(const WorkerOptions& options, Latencies* latencies);
  void drive();

  const WorkerOptions options_;
  Latencies* const latencies_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<size_t> lost_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace telar::bench
