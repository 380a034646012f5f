// The job manager's lock in the hands of one thread, and how long it stays there: everybody else waits meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <mutex>

namespace telar::server::jobs {

// What the lock is held for.
enum class Doing { kLeases, kRound, kSubmit, kChange, kList, kLook, kHeartbeat, kAssign, kReport, kCount };
inline constexpr std::array<const char*, 10> kDoings = {"leases", "round",     "submit", "change", "list",
                                                        "look",   "heartbeat", "assign", "report", "count"};

// Told of each time that the lock was held, from any thread, when it is free again.
class HoldObserver {
 public:
  virtual ~HoldObserver() = default;
  virtual void on_hold(Doing doing, double seconds) = 0;
};

// Takes the lock, and gives it up at its end. Used by one thread.
class Hold {
 public:
  Hold(std::mutex& mutex, Doing doing, HoldObserver* observer) : mutex_(mutex), observer_(observer), doing_(doing) {
    lock();
  }
  ~Hold() {
    if (held_) unlock();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void lock() {
    mutex_.lock();
    held_ = true;
    since_ = std::chrono::steady_clock::now();
  }
  void unlock() {
    const std::chrono::duration<double> held = std::chrono::steady_clock::now() - since_;
    held_ = false;
    mutex_.unlock();
    if (observer_ != nullptr) observer_->on_hold(doing_, held.count());
  }
  // Lets those that wait have their turn, and takes the lock for something else.
  void turn_to(Doing doing) {
    unlock();
    doing_ = doing;
    lock();
  }

 private:
  std::mutex& mutex_;
  HoldObserver* const observer_;  // May be null.
  Doing doing_;
  bool held_ = false;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace telar::server::jobs
