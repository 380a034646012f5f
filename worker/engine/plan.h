// What the planner derives from a program, before any device exists.
//
// plan() runs the passes in this order, each in a file of its own (external buffers must not overlap each other):
//   graph.h        edges from byte-range accesses: last writers and the readers since
//   lanes.h        lane of each op -> the few events that its edges need (vector clocks)
//   memory_plan.h  lifetimes over happens-before -> offsets, one arena a memory class
//   validate.h     an independent check: races, lost waits, overlapping lives, reads of nothing
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/program.h"

namespace telar::engine {

inline constexpr uint32_t kNoEvent = 0xffffffffu;

struct PlannedOp {
  uint32_t lane = 0;            // Index into Plan::lanes.
  std::vector<uint32_t> waits;  // Events to wait for before the op.
  uint32_t record = kNoEvent;   // Event to record after the op.
};

struct Plan {
  std::vector<Lane> lanes;
  std::vector<PlannedOp> ops;  // By OpId; issued in program order.
  uint32_t events = 0;
  // By OpId, ascending: ops that must have finished before, by the bytes that they touch in the arenas (reuse of bytes
  // included), as the communicator's op before, or as asked for. Every topological order of these gives the same bytes.
  std::vector<std::vector<OpId>> predecessors;
  std::vector<uint64_t> offsets;  // By BufferId, into the arena of the buffer's class; externals: 0.
  std::array<uint64_t, kMemoryClasses> arena_bytes{};
  uint64_t total_bytes() const;  // Of the device: all but kHost.
};

// INVALID_ARGUMENT: the program reads a transient that nothing wrote, or an access is outside its buffer.
// INTERNAL: the result fails validation (a bug of the engine).
absl::StatusOr<Plan> plan(const Program& program);

// One line an op: lane, name, waits, record, accesses with arena offsets. Stable, for golden tests.
std::string to_text(const Program& program, const Plan& plan);
// Graphviz; one column a lane, edges that became events drawn bold.
std::string to_dot(const Program& program, const Plan& plan);

}  // namespace telar::engine
