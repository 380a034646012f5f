#include "common/grpc_timers.h"

#include <grpc/grpc.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>

// Of libgrpc, in src/core/lib/iomgr/timer_manager.h, which is not installed: does what is due now, in the caller's
// thread. It is there for programs whose background threads are off.
void grpc_timer_manager_tick();

namespace telar {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook(500), kTick(50);
constexpr milliseconds kStep(100);  // What slewing takes in a look is far less.

}  // namespace

std::chrono::steady_clock::duration GrpcTimers::Lateness::look(Clock::Steady now, Clock::Wall wall) {
  const std::chrono::nanoseconds apart = wall.time_since_epoch() - now.time_since_epoch();
  if (apart_ && apart < *apart_ - kStep) until_ = std::max(until_, now) + (*apart_ - apart) + kLook;
  apart_ = apart;
  return std::max(until_ - now, Clock::Steady::duration::zero());
}

void GrpcTimers::keep_going() { static GrpcTimers kTimers; }

GrpcTimers::GrpcTimers() {
  grpc_init();
  sigset_t all, before;  // Signals are the program's own threads'.
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

GrpcTimers::~GrpcTimers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  grpc_shutdown();
}

void GrpcTimers::run() {
  const RealClock clock;
  Lateness lateness;
  bool was_late = false;
  for (std::unique_lock lock(mutex_); !stopping_;) {
    const bool late = lateness.look(clock.now(), clock.wall()) > Clock::Steady::duration::zero();
    if (late && !was_late)
      spdlog::warn("the wall clock was set back; gRPC's timers are looked after until it is there again");
    was_late = late;
    lock.unlock();
    if (late) grpc_timer_manager_tick();
    lock.lock();
    wake_.wait_for(lock, late ? kTick : kLook, [this] { return stopping_; });
  }
}

}  // namespace telar
