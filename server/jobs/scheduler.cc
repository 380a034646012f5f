#include "server/jobs/scheduler.h"

#include <algorithm>
#include <chrono>

namespace telar::server::jobs {
namespace {

constexpr std::chrono::milliseconds kLongestRest(500);
// Events of many ranks come in bursts; one round answers them all.
constexpr std::chrono::milliseconds kShortestRest(10);
constexpr int kRest = 4;  // Times what the round took: it holds up all calls, for a fifth of the time at most.

}  // namespace

Scheduler::Scheduler(JobManager* manager, std::function<void(double seconds)> after_round)
    : manager_(manager), after_round_(std::move(after_round)), thread_([this] { loop(); }) {}

Scheduler::~Scheduler() {
  stop_ = true;
  thread_.join();
}

void Scheduler::loop() {
  while (!stop_) {
    const uint64_t seen = manager_->changes().count();
    const auto start = std::chrono::steady_clock::now();
    manager_->tick();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (after_round_) after_round_(took.count());
    std::this_thread::sleep_for(std::clamp<std::chrono::duration<double>>(kRest * took, kShortestRest, kLongestRest));
    if (!manager_->changes().over()) manager_->changes().wait(seen, kLongestRest);
  }
}

}  // namespace telar::server::jobs
