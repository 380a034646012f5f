// From edges to lanes and events.
//
// Each op carries a vector clock: how many ops of each lane have finished when it has. An op waits for a predecessor on
// another lane only if neither its own lane's past nor another wait implies it, latest predecessors first; so the waits
// are the cross-lane part of the transitive reduction, and an op records an event only if somebody waits for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/graph.h"
#include "worker/engine/plan.h"

namespace telar::engine {

// The order that lanes and events guarantee, whatever the timing.
class HappensBefore {
 public:
  HappensBefore() = default;
  HappensBefore(size_t ops, size_t lanes) : lanes_(lanes), clocks_(ops * lanes, 0), lane_(ops, 0), position_(ops, 0) {}

  size_t lanes() const { return lanes_; }
  uint32_t lane(OpId op) const { return lane_[op]; }
  uint32_t position(OpId op) const { return position_[op]; }  // From 1: the op's place on its lane.
  // By lane: ops of it that have finished when `op` has; position(op) on its own lane.
  std::span<const uint32_t> clock(OpId op) const { return {clocks_.data() + op * lanes_, lanes_}; }
  // `a` has finished before `b` starts. Not reflexive.
  bool before(OpId a, OpId b) const { return a != b && clock(b)[lane_[a]] >= position_[a]; }

  // Ops are placed in list order, each after whatever its clock says; see lanes.cc.
  void place(OpId op, uint32_t lane, uint32_t position) {
    lane_[op] = lane;
    position_[op] = position;
    merge(op, lane, position);
  }
  void join(OpId op, OpId earlier) {
    for (uint32_t lane = 0; lane < lanes_; ++lane) merge(op, lane, clocks_[earlier * lanes_ + lane]);
  }

 private:
  void merge(OpId op, uint32_t lane, uint32_t position) {
    uint32_t& mine = clocks_[op * lanes_ + lane];
    if (mine < position) mine = position;
  }

  size_t lanes_ = 0;
  std::vector<uint32_t> clocks_;  // ops x lanes
  std::vector<uint32_t> lane_;
  std::vector<uint32_t> position_;
};

struct LanePlan {
  std::vector<Lane> lanes;     // Those that the program uses, ascending.
  std::vector<PlannedOp> ops;  // By OpId.
  uint32_t events = 0;
  HappensBefore order;
};

LanePlan plan_lanes(const Program& program, const Graph& graph);

}  // namespace telar::engine
