// Where the ranks of a gang leave their addresses for each other. In memory; fenced by the job's current epoch.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::server::rpc {

// Safe to call from any thread.
class Rendezvous {
 public:
  // OK while this epoch of the job may meet; its error is what callers get otherwise.
  using Fence = std::function<absl::Status(const std::string& job, uint64_t epoch)>;
  explicit Rendezvous(Fence fence) : fence_(std::move(fence)) {}

  // Replaces an earlier value. INVALID_ARGUMENT: a value over 64 KiB, or an empty key.
  absl::Status put(const std::string& job, uint64_t epoch, const std::string& key, const std::string& value);
  // Waits until all keys are there. DEADLINE_EXCEEDED names those that are missing; CANCELLED when `cancelled` says so
  // (asked five times a second); the fence's error as soon as the epoch is over; UNAVAILABLE after shut_down().
  absl::StatusOr<std::vector<std::string>> get(const std::string& job, uint64_t epoch,
                                               const std::vector<std::string>& keys,
                                               std::chrono::system_clock::time_point deadline,
                                               const std::function<bool()>& cancelled);
  void shut_down();

 private:
  using Gang = std::pair<std::string, uint64_t>;  // Job and epoch.
  void forget_old();                              // Wants mutex_ held.

  const Fence fence_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Gang, std::map<std::string, std::string>> values_;  // Guarded by mutex_.
  bool over_ = false;                                          // Guarded by mutex_.
};

}  // namespace telar::server::rpc
