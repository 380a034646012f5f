// A counter that one can wait for: streams sleep on it until something is new, or the daemon ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace telar::server::jobs {

class ChangeSignal {
 public:
  void notify() {
    std::lock_guard<std::mutex> hold(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // For good: every wait returns at once from now on.
  void shut_down() {
    std::lock_guard<std::mutex> hold(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  bool over() const {
    std::lock_guard<std::mutex> hold(mutex_);
    return over_;
  }
  uint64_t count() const {
    std::lock_guard<std::mutex> hold(mutex_);
    return count_;
  }
  // Until the count is another one than `seen`, `most` passed, or all is over. Returns the count.
  uint64_t wait(uint64_t seen, std::chrono::milliseconds most) {
    std::unique_lock<std::mutex> hold(mutex_);
    changed_.wait_for(hold, most, [&] { return over_ || count_ != seen; });
    return count_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;  // Guarded by mutex_.
  bool over_ = false;   // Guarded by mutex_.
};

}  // namespace telar::server::jobs
