#include "worker/backend/cuda/nccl_watchdog.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace telar::backend::cuda {

NcclWatchdog& NcclWatchdog::instance() {
  static NcclWatchdog& watchdog = *new NcclWatchdog(std::chrono::milliseconds(100));  // Outlives all that it watches.
  return watchdog;
}

NcclWatchdog::NcclWatchdog(std::chrono::milliseconds period) : period_(period), thread_([this] { loop(); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatchdog::add(int device, Member& member) {
  {
    const std::lock_guard lock(mutex_);
    devices_[device].members.push_back(&member);
  }
  changed_.notify_all();
}

void NcclWatchdog::remove(int device, Member& member) {
  std::unique_lock lock(mutex_);
  Device& state = devices_.at(device);
  changed_.wait(lock, [&] { return !state.aborting; });
  std::erase(state.members, &member);
  if (state.members.empty()) devices_.erase(device);
}

void NcclWatchdog::fail(int device, const absl::Status& status) {
  std::vector<Member*> members;
  {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(device);
    if (found == devices_.end() || !found->second.failure.ok()) return;
    found->second.failure = status;
    found->second.aborting = true;  // Keeps the members, and with them the device, alive.
    members = found->second.members;
  }
  std::vector<std::thread> aborts;
  for (Member* member : members) aborts.emplace_back([member] { member->abort(); });
  for (std::thread& abort : aborts) abort.join();
  {
    const std::lock_guard lock(mutex_);
    devices_.at(device).aborting = false;
  }
  changed_.notify_all();
}

absl::Status NcclWatchdog::failure(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device);
  return found == devices_.end() ? absl::OkStatus() : found->second.failure;
}

absl::Status NcclWatchdog::wait(int device, const std::function<absl::Status()>& wait) {
  std::list<HostWait>::iterator own;
  {
    const std::lock_guard lock(mutex_);
    own = waits_.insert(waits_.end(), {device, Clock::now()});
  }
  const absl::Status status = wait();
  {
    const std::lock_guard lock(mutex_);
    waits_.erase(own);
  }
  const absl::Status failed = failure(device);
  return failed.ok() ? status : failed;
}

// With mutex_ held.
absl::Status NcclWatchdog::look(int device, const Device& state) const {
  std::chrono::milliseconds timeout = std::chrono::milliseconds::max();
  for (Member* member : state.members) {
    if (absl::Status status = member->look(); !status.ok()) return status;
    timeout = std::min(timeout, member->call_timeout());
  }
  const auto is_late = [&](const HostWait& wait) {
    return wait.device == device && Clock::now() - wait.start >= timeout;
  };
  if (std::ranges::none_of(waits_, is_late)) return absl::OkStatus();
  std::string under_way;
  for (Member* member : state.members) {
    const std::string unfinished = member->unfinished();
    if (!unfinished.empty()) absl::StrAppend(&under_way, under_way.empty() ? "" : "; ", unfinished);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("device ", device, " has not finished what the host has waited for for ", timeout.count(),
                   " ms; a peer is missing or hangs. May be under way: ", under_way.empty() ? "nothing" : under_way));
}

void NcclWatchdog::loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait(lock, [this] { return stop_ || !devices_.empty(); });
    for (const auto& [device, state] : devices_) {
      if (!state.failure.ok()) continue;
      const absl::Status found = look(device, state);
      if (found.ok()) continue;
      const int failed = device;
      lock.unlock();
      fail(failed, found);
      lock.lock();
      break;  // The map may be another one.
    }
    changed_.wait_for(lock, period_, [this] { return stop_; });
  }
}

}  // namespace telar::backend::cuda
