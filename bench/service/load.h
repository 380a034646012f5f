// What people do to a coordinator: submit, list, look at a job. Calls are started when they are due, whether or not the
// ones before were answered, and timed from then: a coordinator that falls behind cannot hide it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bench/service/latencies.h"
#include "telar/v1/jobs.grpc.pb.h"

namespace telar::bench {

class Load {
 public:
  Load(const std::string& coordinator, Latencies* latencies);
  ~Load();  // Waits for all answers.

  // As fast as answers come, at most 64 at a time.
  void fill(int jobs);
  struct Rates {  // Calls a second.
    double submit = 500;
    double list = 20;
    double get = 200;
  };
  void run(const Rates& rates, std::chrono::seconds time);
  // Names of the jobs whose submit was acknowledged.
  std::vector<std::string> acknowledged() const;

 private:
  struct Call;
  void submit(std::chrono::steady_clock::time_point due);
  void list(std::chrono::steady_clock::time_point due, int page_size);
  void get(std::chrono::steady_clock::time_point due);
  void begun();
  void ended();
  void wait_until_at_most(int under_way);

  Latencies* const latencies_;
  std::vector<std::unique_ptr<v1::Jobs::Stub>> stubs_;  // Some connections, used in turn.
  std::atomic<uint64_t> next_stub_{0};
  const std::string run_;  // Makes request ids of this run differ from any other's.
  uint64_t requests_ = 0;

  mutable std::mutex mutex_;  // Guards the next three.
  std::condition_variable changed_;
  int under_way_ = 0;
  std::vector<std::string> acknowledged_;
};

}  // namespace telar::bench
