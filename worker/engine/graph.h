// Direct dependencies, read off the byte ranges that ops touch.
//
// Per byte range the builder keeps the last writer and the readers since. A reader depends on the last writer; a writer
// on the readers since, or on the last writer if there are none (with readers the older write is implied). Edges go
// from earlier to later ops of the list, so the list is always a topological order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/program.h"

namespace telar::engine {

// Why one op comes after another; an edge may have several reasons.
enum EdgeKind : uint8_t {
  kReadAfterWrite = 1,
  kWriteAfterRead = 2,
  kWriteAfterWrite = 4,
  kReuse = 8,   // The bytes belonged to another buffer before.
  kIssue = 16,  // Two ops of one communicator: all its members must see the same order.
  kAsked = 32,  // Op::after.
};
std::string edge_kinds_to_string(uint8_t kinds);  // "RAW+WAR"

struct Edge {
  OpId from = 0;
  uint8_t kinds = 0;                     // EdgeKind bits.
  BufferId buffer = backend::kNoBuffer;  // One that causes it; none for kIssue and kAsked alone.
};

// By OpId: the edges into the op, ascending by `from`, at most one from each.
using Graph = std::vector<std::vector<Edge>>;

// Over the buffers as the program names them. INVALID_ARGUMENT, naming op, buffer and bytes: an access outside its
// buffer or to no buffer, or to kHost by an op that is not of a copy lane; a read of transient bytes that no earlier op
// wrote; an `after` that is not earlier.
absl::StatusOr<Graph> build_graph(const Program& program);

// Over arena bytes: the same, plus kReuse where transients share bytes, plus kIssue between successive ops of each
// comm lane. Every topological order of it computes the same. `offsets`: by BufferId, see Plan. The program must have
// passed build_graph.
Graph build_placed_graph(const Program& program, const std::vector<uint64_t>& offsets);

}  // namespace telar::engine
