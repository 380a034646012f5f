// Keeps gRPC's timers going when the wall's clock is set back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "common/clock.h"

namespace telar {

// gRPC counts deadlines, keepalive and its pauses between dials on the steady clock, but the one thread that waits for
// the next of them (gpr_cv_wait, on Abseil's condition variables) waits until a time of the wall's clock. Set back by
// an hour, it wakes an hour late, and until then nothing in this process times out or dials again. While that may be
// so, a thread of ours looks for what is due.
class GrpcTimers {
 public:
  // One for the process, from the first call on.
  static void keep_going();

  // How long, from `now` on, its thread may be late: how far the wall's clock was set back since the last call, and
  // what is left of the times before. Zero: not at all.
  class Lateness {
   public:
    std::chrono::steady_clock::duration look(Clock::Steady now, Clock::Wall wall);

   private:
    std::optional<std::chrono::nanoseconds> apart_;  // The wall's from the steady clock.
    Clock::Steady until_;
  };

  GrpcTimers();
  ~GrpcTimers();
  GrpcTimers(const GrpcTimers&) = delete;
  GrpcTimers& operator=(const GrpcTimers&) = delete;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // Guarded by mutex_.
  std::thread thread_;
};

}  // namespace telar
