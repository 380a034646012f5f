// A clock that stands still until a test moves it.
#pragma once

#include <chrono>
#include <mutex>

#include "common/clock.h"

namespace telar::fakes {

// Both times advance together, from a fixed start; the wall's can be set. Safe to move while others read.
class FakeClock final : public Clock {
 public:
  Steady now() const override {
    std::lock_guard<std::mutex> hold(mutex_);
    return Steady(std::chrono::hours(1)) + passed_;
  }
  Wall wall() const override {
    std::lock_guard<std::mutex> hold(mutex_);
    return Wall(std::chrono::seconds(1'800'000'000)) + passed_ + set_;
  }
  void set_wall(std::chrono::milliseconds by) {
    std::lock_guard<std::mutex> hold(mutex_);
    set_ += by;
  }
  void advance(std::chrono::milliseconds by) {
    std::lock_guard<std::mutex> hold(mutex_);
    passed_ += by;
  }

 private:
  mutable std::mutex mutex_;
  std::chrono::milliseconds passed_{0};
  std::chrono::milliseconds set_{0};  // Of the wall's clock alone.
};

}  // namespace telar::fakes
