// How the ranks of this node get on: what their heartbeats say as v1::RankPace.
//
// A rank gets on when it tells of a step, or when the count in its flight file grows. Times are this process's own, by
// a monotonic clock: a rank whose host clock jumps, or that is stopped, changes nothing in them.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "common/clock.h"
#include "telar/v1/cluster.pb.h"
#include "worker/agent/rank_dir.h"

namespace telar::agent {

// Thread safe. The clock must outlive it.
class PaceBook {
 public:
  // Steps. What is the rank's own is the mean of those of the last kSlowestOf that tell, the last kMeanOf of them.
  static constexpr size_t kMeanOf = 20, kSlowestOf = 100;

  explicit PaceBook(const Clock* clock) : clock_(clock) {}

  void add(const RankKey& key, const std::string& flight_path);
  void remove(const RankKey& key);
  // Each event of a rank, in order; those of ranks that were not added are ignored.
  void observe(const RankKey& key, const v1::RankEvent& event);
  // Looks at the flight files, at most twice a second.
  void look();
  std::optional<v1::RankPace> pace(const RankKey& key) const;

 private:
  struct Step {
    double seconds = 0;
    std::optional<double> own;
  };
  struct Rank {
    std::string flight_path;
    Clock::Steady moved;  // When it last got anywhere.
    uint64_t beats = 0;
    uint64_t step = 0;
    v1::RankPace::Activity activity = v1::RankPace::ACTIVITY_UNSPECIFIED;
    std::deque<Step> steps;  // The last ones.
  };

  const Clock* const clock_;
  mutable std::mutex mutex_;
  std::map<RankKey, Rank> ranks_;        // Guarded by mutex_.
  std::optional<Clock::Steady> looked_;  // Guarded by mutex_.
};

}  // namespace telar::agent
