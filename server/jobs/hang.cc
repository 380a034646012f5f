#include "server/jobs/hang.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace telar::server::jobs {
namespace {

constexpr double kOfTheSlowest = 5;       // Steps.
constexpr double kOfAQuietActivity = 10;  // A start or a save shows no progress of its own.

bool quiet(const v1::RankPace& pace) {
  if (pace.activity() == v1::RankPace::STARTING || pace.activity() == v1::RankPace::SAVING) return true;
  return pace.activity() == v1::RankPace::ACTIVITY_UNSPECIFIED && pace.step() == 0;
}

// A member's place in one group.
struct Place {
  uint64_t issued = 0;                    // Its last call.
  const v1::FlightEntry* open = nullptr;  // The first one that is not over.
};

// A call that some wait in and others have not come to.
struct Gap {
  const v1::FlightEntry* call = nullptr;
  std::vector<uint32_t> waiting, missing;
};

class Gang {
 public:
  explicit Gang(const std::vector<GangMember>& members) {
    for (const GangMember& member : members) ranks_.insert(member.rank);
    for (const GangMember& member : members) read(member);
    find_gaps();
  }

  // The rank that others wait for and that waits for nobody, with the call; nothing when there is none.
  const Gap* root(uint32_t& rank) const {
    std::set<uint32_t> wait;
    for (const Gap& gap : gaps_) wait.insert(gap.waiting.begin(), gap.waiting.end());
    const Gap* found = nullptr;
    for (const Gap& gap : gaps_) {
      for (const uint32_t missing : gap.missing) {
        // Of several the one that most wait for: the others may be on their way.
        if (wait.count(missing) != 0 || (found != nullptr && found->waiting.size() >= gap.waiting.size())) continue;
        found = &gap;
        rank = missing;
      }
    }
    return found;
  }
  // The call that a rank is missing from, or is in.
  const Gap* gap_of(uint32_t rank) const {
    for (const Gap& gap : gaps_) {
      if (std::find(gap.missing.begin(), gap.missing.end(), rank) != gap.missing.end()) return &gap;
    }
    return nullptr;
  }
  const v1::FlightEntry* open_call_of(uint32_t rank) const {
    for (const auto& [group, places] : groups_) {
      const auto found = places.find(rank);
      if (found != places.end() && found->second.open != nullptr) return found->second.open;
    }
    return nullptr;
  }

 private:
  void read(const GangMember& member) {
    if (member.record == nullptr) return;
    for (const v1::FlightEntry& entry : member.record->entries()) {
      Place& place = groups_[entry.group()][member.rank];
      for (const uint32_t rank : entry.ranks()) {
        if (ranks_.count(rank) != 0) groups_[entry.group()].try_emplace(rank);
      }
      place.issued = std::max(place.issued, entry.sequence());
      if (entry.state() != v1::FlightEntry::DONE && place.open == nullptr) place.open = &entry;
    }
  }

  void find_gaps() {
    for (const auto& [group, places] : groups_) {
      Gap gap;
      for (const auto& [rank, place] : places) {
        if (place.open == nullptr) continue;
        if (gap.call == nullptr || place.open->sequence() < gap.call->sequence()) gap.call = place.open;
      }
      if (gap.call == nullptr) continue;
      for (const auto& [rank, place] : places) {
        if (place.issued < gap.call->sequence()) {
          gap.missing.push_back(rank);
        } else if (place.open != nullptr) {
          gap.waiting.push_back(rank);
        }
      }
      if (!gap.missing.empty()) gaps_.push_back(gap);
    }
  }

  std::set<uint32_t> ranks_;
  std::map<std::string, std::map<uint32_t, Place>> groups_;
  std::vector<Gap> gaps_;
};

std::string name_of(const v1::FlightEntry& call) {
  return absl::StrCat(call.op(), " ", call.sequence(), " of group ", call.group(),
                      call.step() > 0 ? absl::StrCat(" (step ", call.step(), ")") : "");
}

// "ranks 0, 2 and 3 wait", "rank 0 waits"
std::string who_wait(const std::vector<uint32_t>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > kMost) absl::StrAppend(&text, " and ", ranks.size() - kMost, " more");
  return text + (ranks.size() == 1 ? " waits" : " wait");
}

std::string absence(const Gap& gap) {
  return absl::StrCat("is not in ", name_of(*gap.call), ", which ", who_wait(gap.waiting), " in for ",
                      absl::StrFormat("%.0f s", gap.call->seconds()));
}

std::string silence(const GangMember& member) {
  return absl::StrFormat("has got nowhere for %.0f s behind step %d", member.pace.silent_seconds(), member.pace.step());
}

const GangMember& most_silent(const std::vector<GangMember>& gang) {
  return *std::max_element(gang.begin(), gang.end(), [](const GangMember& a, const GangMember& b) {
    return a.pace.silent_seconds() < b.pace.silent_seconds();
  });
}

// Where a rank is that is to blame for another reason than where it is.
std::string whereabouts(const Gang& gang, const GangMember& member) {
  if (const Gap* gap = gang.gap_of(member.rank); gap != nullptr && !gap->waiting.empty()) return absence(*gap);
  if (const v1::FlightEntry* call = gang.open_call_of(member.rank); call != nullptr) {
    return absl::StrCat("has got nowhere in ", name_of(*call), " for ", absl::StrFormat("%.0f s", call->seconds()));
  }
  return silence(member);
}

bool on_several_nodes(const std::vector<GangMember>& members) {
  return std::any_of(members.begin(), members.end(),
                     [&](const GangMember& member) { return member.node != members.front().node; });
}

}  // namespace

double silence_allowed(const v1::RestartSpec& restart, const std::vector<GangMember>& gang) {
  const double least = restart.hang_seconds() == 0 ? 60 : restart.hang_seconds();
  double allowed = least;
  for (const GangMember& member : gang) {
    allowed = std::max(
        {allowed, kOfTheSlowest * member.pace.slowest_seconds(), quiet(member.pace) ? kOfAQuietActivity * least : 0});
  }
  return allowed;
}

bool hangs(const v1::RestartSpec& restart, const std::vector<GangMember>& gang) {
  const double allowed = silence_allowed(restart, gang);
  return std::any_of(gang.begin(), gang.end(),
                     [&](const GangMember& member) { return member.pace.silent_seconds() >= allowed; });
}

HangVerdict find_cause(const std::vector<GangMember>& members) {
  const Gang gang(members);
  const auto with_process = [&](const char* state) -> const GangMember* {
    for (const GangMember& member : members) {
      if (member.record != nullptr && member.record->process() == state) return &member;
    }
    return nullptr;
  };
  HangVerdict verdict;
  verdict.named = true;
  if (const GangMember* stopped = with_process("stopped"); stopped != nullptr) {
    verdict.rank = stopped->rank;
    verdict.of_node = true;
    verdict.message = whereabouts(gang, *stopped) + "; its process is stopped";
    return verdict;
  }
  const auto silent =
      std::find_if(members.begin(), members.end(), [](const GangMember& member) { return member.record == nullptr; });
  const bool some_came =
      std::any_of(members.begin(), members.end(), [](const GangMember& member) { return member.record != nullptr; });
  if (silent != members.end() && some_came) {
    verdict.rank = silent->rank;
    verdict.of_node = true;
    verdict.message = whereabouts(gang, *silent) + "; its worker sends no flight record";
    return verdict;
  }
  if (const Gap* gap = gang.root(verdict.rank); gap != nullptr) {
    verdict.message = absence(*gap);
    // Nobody is missing from the call that it is in itself, or it were not the root: what was said there got lost.
    const v1::FlightEntry* own = gang.open_call_of(verdict.rank);
    if (own != nullptr && own->state() == v1::FlightEntry::RUNNING && on_several_nodes(members)) {
      verdict.of_node = true;
      absl::StrAppend(&verdict.message, "; it is still in ", name_of(*own), ", which all came to");
    }
    if (with_process("uninterruptible") != nullptr && with_process("uninterruptible")->rank == verdict.rank) {
      verdict.message += "; its process is in an uninterruptible wait, as for a disk or a driver";
    }
    return verdict;
  }
  const GangMember& longest = most_silent(members);
  verdict.rank = longest.rank;
  verdict.named = members.size() == 1;
  verdict.message = whereabouts(gang, longest);
  if (members.size() == 1) return verdict;
  if (!some_came) {
    verdict.message += "; no worker sends a flight record";
  } else if (gang.gap_of(longest.rank) != nullptr && gang.open_call_of(longest.rank) != nullptr) {
    absl::StrAppend(&verdict.message, ", and waits itself in ", name_of(*gang.open_call_of(longest.rank)),
                    ": the ranks wait for each other");
  } else if (gang.open_call_of(longest.rank) != nullptr && on_several_nodes(members)) {
    verdict.of_node = true;
    verdict.message += "; no rank is missing from a call, so it is the call that does not end, between several nodes";
  } else {
    verdict.message += "; no rank is missing from a call, so it is the call that does not end, or nobody is in one";
  }
  return verdict;
}

std::string account_of(const GangMember& member) {
  const std::string who = absl::StrCat("rank ", member.rank, " on node ", member.node, ": ");
  if (member.record == nullptr) return absl::StrCat(who, "no flight record; ", silence(member));
  const auto& calls = member.record->entries();
  const auto open = std::find_if(calls.begin(), calls.end(),
                                 [](const v1::FlightEntry& call) { return call.state() != v1::FlightEntry::DONE; });
  std::string text = absl::StrCat(who, "process ", member.record->process(), ", ");
  if (calls.empty()) return absl::StrCat(text, "no call yet; ", silence(member));
  const v1::FlightEntry& call = open != calls.end() ? *open : *calls.rbegin();
  return absl::StrCat(text, name_of(call), " ", v1::FlightEntry::State_Name(call.state()),
                      absl::StrFormat(" for %.0f s; ", call.seconds()), silence(member));
}

}  // namespace telar::server::jobs
