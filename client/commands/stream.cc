#include "client/commands/stream.h"

#include <algorithm>

namespace telar::client {
namespace {
constexpr Milliseconds kFirstDelay{100};
constexpr Milliseconds kLongestDelay{2000};
constexpr Milliseconds kLongestSilence{20'000};  // Four of the server's heartbeats.
}  // namespace

bool is_lost_connection(const absl::Status& status) {
  // A coordinator that shuts down cancels its streams; we cancel none that we still read.
  return absl::IsUnavailable(status) || absl::IsCancelled(status);
}

void Contact::attempt() { attempt_ = context_.clock.now(); }

void Contact::made() {
  last_ = context_.clock.now();
  delay_ = Milliseconds(0);
}

bool Contact::wait_to_retry() {
  if (delay_ == Milliseconds(0)) {
    say_("connection lost, retrying");
    delay_ = kFirstDelay;
  }
  const auto spent = context_.clock.now() - last_;
  if (spent + delay_ >= context_.stream_timeout()) return false;
  context_.interrupt.wait_for(delay_);
  delay_ = std::min(delay_ * 2, kLongestDelay);
  return true;
}

bool Contact::silent() const {
  return context_.clock.now() - std::max(last_, attempt_) >= std::min(kLongestSilence, context_.stream_timeout());
}

}  // namespace telar::client
