// Memory of a host, and what the ranks of a run on one node take of it together.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "telar/v1/rank.pb.h"
#include "worker/backend/collectives.h"

namespace telar::train {

// Bytes: what the machine can give without swapping, or less where the process's control group (version 2) or one above
// it allows less; page cache counts as free. UINT64_MAX where nobody tells. `root` is for tests: what stands in for
// "/".
uint64_t available_host_memory(const std::string& root = "");

// What a rank is about to take for its saves.
struct SaveMemory {
  uint64_t parameters = 0;  // A master and two moments each.
  uint64_t bytes = 0;
  uint64_t available_bytes = 0;  // Before any rank of the node takes its own.
};
// OK when there is room for all ranks of this one's node. Every rank of the run calls it; through `store` (null for a
// run of one rank) those of a node tell each other, and each waits for the others before it takes anything, so that all
// of them come to one answer. RESOURCE_EXHAUSTED has the sum and what is free, of class OUT_OF_MEMORY; else errors are
// the store's, of class COMMUNICATION.
absl::Status find_host_memory(const v1::RankPlan& plan, const SaveMemory& wanted, backend::KeyValueStore* store);

}  // namespace telar::train
