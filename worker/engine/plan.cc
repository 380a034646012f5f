#include "worker/engine/plan.h"

#include <numeric>

#include "worker/engine/graph.h"
#include "worker/engine/lanes.h"
#include "worker/engine/memory_plan.h"
#include "worker/engine/validate.h"

namespace telar::engine {

uint64_t Plan::total_bytes() const {
  const uint64_t all = std::accumulate(arena_bytes.begin(), arena_bytes.end(), uint64_t{0});
  return all - arena_bytes[static_cast<size_t>(MemoryClass::kHost)];
}

absl::StatusOr<Plan> plan(const Program& program) {
  absl::StatusOr<Graph> graph = build_graph(program);
  if (!graph.ok()) return graph.status();
  LanePlan lanes = plan_lanes(program, *graph);
  MemoryPlan memory = plan_memory(program, lanes.order);

  Plan result;
  result.lanes = std::move(lanes.lanes);
  result.ops = std::move(lanes.ops);
  result.events = lanes.events;
  result.offsets = std::move(memory.offsets);
  result.arena_bytes = memory.arena_bytes;
  const Graph placed = build_placed_graph(program, result.offsets);
  result.predecessors.resize(placed.size());
  for (OpId op = 0; op < placed.size(); ++op) {
    for (const Edge& edge : placed[op]) result.predecessors[op].push_back(edge.from);
  }
  absl::Status status = validate(program, result);
  if (!status.ok()) return status;
  return result;
}

}  // namespace telar::engine
