// How much one caller may ask for.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/errors.h"
#include "google/protobuf/message.h"

namespace telar::server::auth {

// A bucket of `burst` calls for each user, refilled by `per_second`. Thread safe.
class RateLimit {
 public:
  RateLimit(double per_second, double burst, const Clock* clock)
      : per_second_(per_second), burst_(burst), clock_(clock) {}
  // Takes one. RESOURCE_EXHAUSTED (RATE_LIMIT), with the time until there is one again.
  absl::Status take(const std::string& user);

 private:
  struct Bucket {
    double calls = 0;
    Clock::Steady time;
  };
  const double per_second_, burst_;
  const Clock* const clock_;
  std::mutex mutex_;
  std::map<std::string, Bucket> buckets_;  // Guarded by mutex_; as many as there are users.
};

// Open streams of each user: each holds a thread. Thread safe.
class StreamLimit {
 public:
  explicit StreamLimit(int most) : most_(most) {}
  absl::Status open(const std::string& user);  // RESOURCE_EXHAUSTED (STREAM_LIMIT).
  void close(const std::string& user);         // Of one that was opened.

 private:
  const int most_;
  std::mutex mutex_;
  std::map<std::string, int> open_;  // Guarded by mutex_.
};

// Every string and list of a request that is longer than anybody needs, and every string with a NUL in it, by path.
std::vector<Violation> find_oversize(const google::protobuf::Message& request);

}  // namespace telar::server::auth
