// How far this host's clock is from one that all ranks of a job can ask, by round trips.
//
// From one exchange, with t0 and t3 the own clock's times of asking and of having the answer, t1 and t2 the other's of
// hearing and of answering: the other's clock is ahead by ((t1 - t0) + (t2 - t3)) / 2, give or take half of the time
// that was spent on the way, (t3 - t0) - (t2 - t1), however that splits (RFC 5905, section 8). The exchange with the
// shortest way says it best.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "telar/v1/rank.pb.h"

namespace telar::train {

// All in seconds, each by the clock of whom it names; both never jump.
struct ClockExchange {
  double asked = 0, answered = 0;    // Of who asks.
  double received = 0, replied = 0;  // Of who is asked.
};

struct ClockOffset {
  std::string reference;  // Whose clock it was.
  double offset = 0;      // To be added to the own clock to have that one.
  double error = 0;       // At most so far off.
};

// The best of them; none without any.
std::optional<ClockOffset> best_offset(std::span<const ClockExchange> exchanges);

class ReferenceClock {
 public:
  virtual ~ReferenceClock() = default;
  struct Answer {
    std::string reference;  // Another one: another clock.
    double received = 0, replied = 0;
  };
  virtual absl::StatusOr<Answer> ask(std::chrono::milliseconds timeout) = 0;
};

// Asks a few times, for `longest` at most. Nothing when it gets no answer, or those of several clocks.
std::optional<ClockOffset> measure_offset(ReferenceClock& reference, const Clock& clock,
                                          std::chrono::milliseconds longest = std::chrono::milliseconds(300));

// The coordinator's; null where the plan names none.
std::unique_ptr<ReferenceClock> dial_reference_clock(const v1::RankPlan& plan);

double seconds_of(Clock::Steady time);

}  // namespace telar::train
