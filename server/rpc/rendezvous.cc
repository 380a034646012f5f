#include "server/rpc/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"

namespace telar::server::rpc {
namespace {

constexpr size_t kMostValue = 64 << 10;
constexpr size_t kMostNamed = 8;  // Missing keys in an error.
constexpr std::chrono::milliseconds kLook(200);

absl::Status late(const std::string& job, uint64_t epoch, std::vector<std::string> missing) {
  const size_t count = missing.size();
  if (count > kMostNamed) missing.resize(kMostNamed);
  return error(absl::StatusCode::kDeadlineExceeded, "RENDEZVOUS_TIMEOUT",
               absl::StrCat("job '", job, "' epoch ", epoch, ": ", count, count == 1 ? " key is" : " keys are",
                            " still missing: ", absl::StrJoin(missing, ", "), count > kMostNamed ? ", ..." : ""));
}

}  // namespace

// Gangs whose epoch is over; looked for when a new one begins to meet.
void Rendezvous::forget_old() {
  std::erase_if(values_, [this](const auto& entry) { return !fence_(entry.first.first, entry.first.second).ok(); });
}

absl::Status Rendezvous::put(const std::string& job, uint64_t epoch, const std::string& key, const std::string& value) {
  if (key.empty()) return invalid({{"key", "must not be empty"}});
  if (value.size() > kMostValue) {
    return invalid({{"value", absl::StrCat(value.size(), " bytes; at most ", kMostValue)}});
  }
  if (absl::Status status = fence_(job, epoch); !status.ok()) return status;
  std::lock_guard<std::mutex> hold(mutex_);
  if (values_.count({job, epoch}) == 0) forget_old();
  values_[{job, epoch}][key] = value;
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Rendezvous::get(const std::string& job, uint64_t epoch,
                                                         const std::vector<std::string>& keys,
                                                         std::chrono::system_clock::time_point deadline,
                                                         const std::function<bool()>& cancelled) {
  std::unique_lock<std::mutex> hold(mutex_);
  while (true) {
    if (over_) return error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "the coordinator is shutting down");
    if (absl::Status status = fence_(job, epoch); !status.ok()) return status;
    if (cancelled()) return absl::CancelledError("the caller went away");
    std::vector<std::string> found, missing;
    const auto gang = values_.find({job, epoch});
    for (const std::string& key : keys) {
      const bool there = gang != values_.end() && gang->second.count(key) != 0;
      if (there) found.push_back(gang->second.at(key));
      if (!there) missing.push_back(key);
    }
    if (missing.empty()) return found;
    const auto now = std::chrono::system_clock::now();
    if (now >= deadline) return late(job, epoch, std::move(missing));
    changed_.wait_until(hold, std::min(deadline, now + kLook));
  }
}

void Rendezvous::shut_down() {
  std::lock_guard<std::mutex> hold(mutex_);
  over_ = true;
  changed_.notify_all();
}

}  // namespace telar::server::rpc
