// A KeyValueStore inside one process, for ranks that are threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/collectives.h"

namespace telar::fakes {

// Threads: any.
class InProcessStore final : public backend::KeyValueStore {
 public:
  absl::Status put(const std::string& key, const std::string& value) override {
    {
      const std::lock_guard lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> get(std::span<const std::string> keys,
                                               std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    const auto all_there = [&] { return missing(keys).empty(); };
    if (!changed_.wait_for(lock, timeout, all_there)) {
      return absl::DeadlineExceededError("missing keys:" + missing(keys));
    }
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(values_.at(key));
    return values;
  }

 private:
  std::string missing(std::span<const std::string> keys) const {
    std::string names;
    for (const std::string& key : keys) {
      if (!values_.contains(key)) names += " " + key;
    }
    return names;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace telar::fakes
