// The thread that looks now and then whether the logs of all jobs together have become too many.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "server/jobs/job_manager.h"

namespace telar::server::jobs {

class LogRetention {
 public:
  LogRetention(JobManager* manager, std::chrono::milliseconds interval);
  ~LogRetention();  // Ends the look at hand.
  LogRetention(const LogRetention&) = delete;
  LogRetention& operator=(const LogRetention&) = delete;

 private:
  void loop();

  JobManager* const manager_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool stop_ = false;  // Guarded by mutex_.
  std::thread thread_;
};

}  // namespace telar::server::jobs
