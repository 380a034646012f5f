// The time that waits and deadlines of jobs are counted by. It goes on with the steady clock, so that whoever sets the
// wall's moves none of them. Only how long the coordinator was away it takes from the wall's clock: nothing else knows.
//
// It began as the wall's time. Since then it is ahead of it by what the wall's clock was set back, in all its lives;
// that is kept in the store, as times on this line are. Nobody is shown them.
#pragma once

#include <chrono>
#include <optional>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/store/store.h"

namespace telar::server::jobs {

// Whoever holds it says which thread may call; the clock must outlive it.
class Timeline {
 public:
  explicit Timeline(const Clock* clock, Clock::Wall::duration ahead = Clock::Wall::duration::zero());
  // Goes on where the store has it.
  static absl::StatusOr<Timeline> open(const Clock* clock, store::Store* store);

  Clock::Wall now() const { return Clock::Wall(clock_->now().time_since_epoch() + offset_); }
  Clock::Wall opened() const { return opened_; }
  // Of the wall's clock, by now.
  Clock::Wall::duration ahead() const { return now() - clock_->wall(); }

  // How far the wall's clock was set forward since keep(), where that is more than clocks differ by themselves.
  std::optional<Clock::Wall::duration> unkept() const;
  static store::SettingRow row(Clock::Wall::duration ahead);  // What the store keeps of it.
  void keep(Clock::Wall::duration ahead) { kept_ = ahead; }   // Behind that.

 private:
  const Clock* clock_;
  Clock::Wall::duration offset_;  // To the steady clock.
  Clock::Wall opened_;
  Clock::Wall::duration kept_;
};

}  // namespace telar::server::jobs
