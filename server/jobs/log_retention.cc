#include "server/jobs/log_retention.h"

namespace telar::server::jobs {

LogRetention::LogRetention(JobManager* manager, std::chrono::milliseconds interval)
    : manager_(manager), interval_(interval), thread_([this] { loop(); }) {}

LogRetention::~LogRetention() {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    stop_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void LogRetention::loop() {
  std::unique_lock<std::mutex> hold(mutex_);
  while (!ended_.wait_for(hold, interval_, [this] { return stop_; })) {
    hold.unlock();
    manager_->remove_old_logs();
    hold.lock();
  }
}

}  // namespace telar::server::jobs
