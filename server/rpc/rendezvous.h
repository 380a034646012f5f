// Where the ranks of a gang leave their addresses for each other. The keys are kept elsewhere; this waits for them.
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
  using Values = std::map<std::string, std::string>;
  // Who keeps the keys. Both refuse an epoch that is over; callers get that error.
  struct Keeper {
    std::function<absl::Status(const std::string& job, uint64_t epoch, const std::string& key,
                               const std::string& value)>
        put;
    std::function<absl::StatusOr<Values>(const std::string& job, uint64_t epoch)> all;
  };
  explicit Rendezvous(Keeper keeper) : keeper_(std::move(keeper)) {}

  // Replaces an earlier value. INVALID_ARGUMENT: a value over 64 KiB, or an empty key.
  absl::Status put(const std::string& job, uint64_t epoch, const std::string& key, const std::string& value);
  // Waits until all keys are there. DEADLINE_EXCEEDED names those that are missing; CANCELLED when `cancelled` says so
  // (asked five times a second); the keeper's error as soon as the epoch is over; UNAVAILABLE after shut_down().
  absl::StatusOr<std::vector<std::string>> get(const std::string& job, uint64_t epoch,
                                               const std::vector<std::string>& keys,
                                               std::chrono::steady_clock::time_point deadline,
                                               const std::function<bool()>& cancelled);
  void shut_down();

 private:
  const Keeper keeper_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // Guarded by mutex_.
};

}  // namespace telar::server::rpc
