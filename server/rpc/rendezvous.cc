#include "server/rpc/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"

namespace telar::server::rpc {
namespace {

constexpr size_t kMostValue = 64 << 10;
constexpr size_t kMostNamed = 8;  // Missing keys in an error.
constexpr std::chrono::milliseconds kRankLook(200);

absl::Status late(const std::string& job, uint64_t epoch, std::vector<std::string> missing) {
  const size_t count = missing.size();
  if (count > kMostNamed) missing.resize(kMostNamed);
  return error(absl::StatusCode::kDeadlineExceeded, "RENDEZVOUS_TIMEOUT",
               absl::StrCat("job '", job, "' epoch ", epoch, ": ", count, count == 1 ? " key is" : " keys are",
                            " still missing: ", absl::StrJoin(missing, ", "), count > kMostNamed ? ", ..." : ""));
}

}  // namespace

absl::Status Rendezvous::put(const std::string& job, uint64_t epoch, const std::string& key, const std::string& value) {
  if (key.empty()) return invalid({{"key", "must not be empty"}});
  if (value.size() > kMostValue) {
    return invalid({{"value", absl::StrCat(value.size(), " bytes; at most ", kMostValue)}});
  }
  if (absl::Status status = keeper_.put(job, epoch, key, value); !status.ok()) return status;
  std::lock_guard<std::mutex> hold(mutex_);  // A waiter that just looked must be asleep before it is woken.
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Rendezvous::get(const std::string& job, uint64_t epoch,
                                                         const std::vector<std::string>& keys,
                                                         std::chrono::steady_clock::time_point deadline,
                                                         const std::function<bool()>& cancelled) {
  std::unique_lock<std::mutex> hold(mutex_);
  while (true) {
    if (over_) return error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "the coordinator is shutting down");
    const absl::StatusOr<Values> values = keeper_.all(job, epoch);
    if (!values.ok()) return values.status();
    if (cancelled()) return absl::CancelledError("the caller went away");
    std::vector<std::string> found, missing;
    for (const std::string& key : keys) {
      const auto value = values->find(key);
      if (value == values->end()) {
        missing.push_back(key);
      } else {
        found.push_back(value->second);
      }
    }
    if (missing.empty()) return found;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return late(job, epoch, std::move(missing));
    changed_.wait_until(hold, std::min(deadline, now + kRankLook));
  }
}

void Rendezvous::shut_down() {
  std::lock_guard<std::mutex> hold(mutex_);
  over_ = true;
  changed_.notify_all();
}

}  // namespace telar::server::rpc
