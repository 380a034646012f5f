// Whether a daemon's loop still comes round: what /healthz tells those who would restart it. Any thread.
#pragma once

#include <atomic>
#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace telar {

class Pulse {
 public:
  // It counts as having come round now. After `longest` without a beat it is stuck. `clock` must outlive this.
  Pulse(const Clock* clock, std::chrono::milliseconds longest)
      : clock_(clock), longest_(longest), last_(clock->now()) {}

  // By the loop, at the end of each round.
  void beat() { last_ = clock_->now(); }

  // UNAVAILABLE: no round for too long.
  absl::Status check() const {
    const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(clock_->now() - last_.load());
    if (since <= longest_) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the daemon's loop has not come round for ", since.count() / 1000,
                                               " s, ", longest_.count() / 1000, " are too many"));
  }

 private:
  const Clock* const clock_;
  const std::chrono::milliseconds longest_;
  std::atomic<Clock::Steady> last_;
};

// As long as the units in deploy/systemd give the watchdog.
constexpr std::chrono::seconds kLongestRound{30};

}  // namespace telar
