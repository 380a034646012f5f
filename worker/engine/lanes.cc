#include "worker/engine/lanes.h"

#include <algorithm>

namespace telar::engine {
namespace {

std::vector<Lane> used_lanes(const Program& program) {
  std::vector<Lane> lanes;
  for (const Op& op : program.ops()) {
    const auto place = std::lower_bound(lanes.begin(), lanes.end(), op.lane);
    if (place == lanes.end() || *place != op.lane) lanes.insert(place, op.lane);
  }
  return lanes;
}

}  // namespace

LanePlan plan_lanes(const Program& program, const Graph& graph) {
  LanePlan plan;
  plan.lanes = used_lanes(program);
  const size_t ops = program.ops().size();
  plan.ops.resize(ops);
  plan.order = HappensBefore(ops, plan.lanes.size());
  std::vector<OpId> last(plan.lanes.size(), kNoOp);  // By lane.
  std::vector<uint32_t> count(plan.lanes.size(), 0);

  for (OpId op = 0; op < ops; ++op) {
    const auto found = std::lower_bound(plan.lanes.begin(), plan.lanes.end(), program.ops()[op].lane);
    const auto lane = static_cast<uint32_t>(found - plan.lanes.begin());
    plan.ops[op].lane = lane;
    if (last[lane] != kNoOp) plan.order.join(op, last[lane]);
    // Latest first: what a later predecessor has seen needs no wait of its own.
    const std::vector<Edge>& edges = graph[op];
    for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) {
      if (plan.order.before(edge->from, op)) continue;
      PlannedOp& producer = plan.ops[edge->from];
      if (producer.record == kNoEvent) producer.record = plan.events++;
      plan.ops[op].waits.push_back(producer.record);
      plan.order.join(op, edge->from);
    }
    std::sort(plan.ops[op].waits.begin(), plan.ops[op].waits.end());
    plan.order.place(op, lane, ++count[lane]);
    last[lane] = op;
  }
  return plan;
}

}  // namespace telar::engine
