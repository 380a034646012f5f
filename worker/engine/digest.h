// What the members of a communicator must have alike before their first step, in a few bytes to compare: ranks with
// different calls would hang or mix up each other's data.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/program.h"

namespace telar::engine {

// Of one member's calls on one group. Stable: the same for the same calls in every process and build.
struct CommDigest {
  uint64_t calls = 0;        // How many; sends and receives are counted, too.
  uint64_t collectives = 0;  // Hash of kind, elements, dtype, root and reduction of each in turn: equal on all members.
  std::vector<uint64_t> peers;  // By rank in the group: hash of what goes to and comes from it, and of the collectives
                                // between; equal to what the peer has for this member.
  std::string to_string() const;
  bool operator==(const CommDigest&) const = default;
};

// `rank` of `size` in the group.
CommDigest digest(const Program& program, GroupId group, int rank, int size);

// Publishes this member's digest of the group `name`, reads the others' and compares. FAILED_PRECONDITION names the
// group and the members that differ; errors of the store come as they are. All members call it, once a name.
absl::Status compare_digests(backend::KeyValueStore& store, const std::string& name, int rank, const CommDigest& digest,
                             std::chrono::milliseconds timeout);

}  // namespace telar::engine
