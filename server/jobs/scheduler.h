// The thread that lets the job manager go on: a round after every change, and at least twice a second.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "server/jobs/job_manager.h"

namespace telar::server::jobs {

class Scheduler {
 public:
  // `after_round` feeds whoever watches that rounds are made, and is told how long one took; may be empty.
  Scheduler(JobManager* manager, std::function<void(double seconds)> after_round);
  ~Scheduler();  // Ends the round at hand.

 private:
  void loop();

  JobManager* const manager_;
  const std::function<void(double seconds)> after_round_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace telar::server::jobs
