// Where documents start in sequences: see kernels.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/view.h"

namespace telar::backend::cpu {

// Of one or more sequences; in an absent tensor every token's document starts with its sequence.
class Starts {
 public:
  explicit Starts(const In& starts) : starts_(starts.absent() ? nullptr : starts.as<int32_t>()) {}

  bool absent() const { return starts_ == nullptr; }
  int64_t operator[](int64_t token) const { return starts_ == nullptr ? 0 : starts_[token]; }
  // The number of a token in its document.
  int64_t position(int64_t token, int64_t sequence) const { return token % sequence - (*this)[token]; }
  // Those of a sequence that begins with this token.
  Starts from(int64_t token) const { return Starts(starts_ == nullptr ? nullptr : starts_ + token); }

 private:
  explicit Starts(const int32_t* starts) : starts_(starts) {}

  const int32_t* starts_;
};

inline absl::Status check_starts(const char* op, const In& starts, int64_t sequence) {
  if (starts.absent()) return absl::OkStatus();
  const int32_t* start = starts.as<int32_t>();
  for (int64_t t = 0; t < starts.elements(); ++t) {
    const int64_t least = t % sequence == 0 ? 0 : start[t - 1];
    if (start[t] >= least && start[t] <= t % sequence) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": starts: got ", start[t], " at token ", t, ", wanted ", least, " to ", t % sequence));
  }
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
