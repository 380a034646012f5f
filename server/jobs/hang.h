// When a gang hangs, and who of it is to blame. Pure: rules on what workers have told; docs/failures.md says them in
// words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "telar/v1/cluster.pb.h"
#include "telar/v1/spec.pb.h"

namespace telar::server::jobs {

// One rank as its worker tells of it.
struct GangMember {
  uint32_t rank = 0;
  std::string node;
  v1::RankPace pace;
  const v1::FlightRecord* record = nullptr;  // None came.
};

// How long a rank may get nowhere while all run. It is the longest that any of them may: who waits for one that saves
// is as silent as that one.
double silence_allowed(const v1::RestartSpec& restart, const std::vector<GangMember>& gang);

// Whether some rank has been silent for longer.
bool hangs(const v1::RestartSpec& restart, const std::vector<GangMember>& gang);

struct HangVerdict {
  uint32_t rank = 0;
  bool named = false;  // False: it is only the one that was silent for longest.
  // The process was stopped from outside, its worker did not answer, or nobody is missing from the call that it is
  // in, which is one between several nodes.
  bool of_node = false;
  // What follows "rank 1 on node b ": "is not in all_reduce 8841 of group data.0 (step 12), which ranks 0, 2 and 3 wait
  // in for 63 s; its process is stopped".
  std::string message;
};

// Whom the others wait for. A rank whose process is stopped is to blame, wherever it is; else one whose record is
// missing though others came; else one that others wait for in a call and that itself waits for nobody: who waits in a
// call for a rank that is not there is no cause. Wants at least one member.
HangVerdict find_cause(const std::vector<GangMember>& gang);

// Where one of them is, in a line for the log: "rank 0 on node a: process sleeping, all_reduce 8841 of group shard.0
// (step 1203) RUNNING for 63 s; has got nowhere for 63 s behind step 1202".
std::string account_of(const GangMember& member);

}  // namespace telar::server::jobs
