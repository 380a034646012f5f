#include "server/jobs/straggler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace telar::server::jobs {
namespace {

// The lower one of the two in the middle, so that of two ranks the slow one is compared with the other. 0: not all
// tell.
double median_own(const std::vector<GangMember>& gang) {
  std::vector<double> own;
  for (const GangMember& member : gang) {
    if (member.pace.own_seconds() <= 0) return 0;
    own.push_back(member.pace.own_seconds());
  }
  if (own.size() < 2) return 0;
  const auto middle = own.begin() + static_cast<std::ptrdiff_t>((own.size() - 1) / 2);
  std::nth_element(own.begin(), middle, own.end());
  return *middle;
}

}  // namespace

bool Stragglers::look(const std::vector<GangMember>& gang) {
  const double median = median_own(gang);
  ratio_ = 0;
  if (median <= 0) return false;
  bool changed = false;
  for (const GangMember& member : gang) {
    const double ratio = member.pace.own_seconds() / median;
    ratio_ = std::max(ratio_, ratio);
    const auto known = slow_.find(member.rank);
    if (known == slow_.end()) {
      if (ratio > kAbove) slow_[member.rank] = {member.pace.step(), false, ratio};
      continue;
    }
    Slow& slow = known->second;
    slow.ratio = ratio;
    if (ratio < (slow.flagged ? kBelow : kAbove)) {
      changed = changed || slow.flagged;
      slow_.erase(known);
    } else if (!slow.flagged && member.pace.step() >= slow.since + kSteps) {
      slow.flagged = changed = true;
    }
  }
  return changed;
}

bool Stragglers::flagged(uint32_t rank) const {
  const auto found = slow_.find(rank);
  return found != slow_.end() && found->second.flagged;
}

std::string Stragglers::message(const std::vector<GangMember>& gang) const {
  std::string text;
  for (const GangMember& member : gang) {
    const auto found = slow_.find(member.rank);
    if (found == slow_.end() || !found->second.flagged) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", member.rank, " on node ", member.node, " takes ",
                    absl::StrFormat("%.3g s of its own a step, %.2f times the gang's median, since step %d",
                                    member.pace.own_seconds(), found->second.ratio, found->second.since));
  }
  return text;
}

}  // namespace telar::server::jobs
