// Whether the programs of all ranks of a job fit together: for tests of what records them.
//
// Each call is merged across the ranks that take part in it into one node; a call is over when all are there. If the
// nodes and what each rank does in order have no cycle, no timing can make the ranks wait for each other forever.
// Exchanges that hang together, one's message to the next, count as one call: they wait for all, which is more than
// they really do.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/program.h"

namespace telar::engine {

struct CommGroup {
  std::string name;
  std::vector<size_t> ranks;  // Its members in their order.
};
struct RankProgram {
  const Program* program = nullptr;
  std::vector<size_t> groups;  // By GroupId of the program: index into the list of all groups.
};

// What each rank does in order.
enum class CommOrder : uint8_t {
  kLanes,  // Ops of each lane, and what depends on each other: what the lane executor keeps.
  kList,   // The whole list: one op after another.
};

// INVALID_ARGUMENT names group, ranks and ops: members that make different calls, a send without its receive, calls on
// a group by one that is not a member, ranks that wait for each other.
absl::Status check_comm(std::span<const RankProgram> ranks, std::span<const CommGroup> groups, CommOrder order);

}  // namespace telar::engine
