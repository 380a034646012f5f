// Ranks that hold their gang up by being slow themselves. They are told of and never stopped: a slow gang is better
// than none, and what a straggler's node is good for is for people to say.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/jobs/hang.h"

namespace telar::server::jobs {

// Of one epoch. A rank becomes a straggler when the mean of its own time over the last 20 steps was more than kAbove
// times the gang's median, and is so still 20 steps later: no step is in both means. It stays one until it is below
// kBelow times the median.
class Stragglers {
 public:
  static constexpr double kAbove = 1.2, kBelow = 1.1;
  static constexpr uint64_t kSteps = 20;

  // True when another set of ranks is slow now.
  bool look(const std::vector<GangMember>& gang);
  // The largest own time over the median; 0: nobody knows.
  double ratio() const { return ratio_; }
  bool flagged(uint32_t rank) const;  // It is one.
  // "rank 3 on node b takes 0.31 s of its own a step, 1.45 times the gang's median, since step 1240"; empty: none.
  std::string message(const std::vector<GangMember>& gang) const;

 private:
  struct Slow {
    uint64_t since = 0;  // Step at which it was first seen to be.
    bool flagged = false;
    double ratio = 0;
  };
  std::map<uint32_t, Slow> slow_;
  double ratio_ = 0;
};

}  // namespace telar::server::jobs
