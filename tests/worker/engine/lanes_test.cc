#include "worker/engine/lanes.h"

#include <gmock/gmock.h>

#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using testing::comm_lane;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kComputeLane;
using testing::mix;
using testing::persistent;
using testing::random_program;
using testing::read;
using ::testing::SizeIs;
using testing::update;
using testing::write;

LanePlan planned(const Program& program) { return plan_lanes(program, build_graph(program).value()); }

TEST(LanesTest, OneLaneNeedsNoEvents) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  for (int i = 0; i < 5; ++i) mix(program, "op", kComputeLane, {update(x)});
  const LanePlan plan = planned(program);
  EXPECT_EQ(plan.events, 0u);
  EXPECT_THAT(plan.lanes, ElementsAre(kComputeLane));
  EXPECT_TRUE(plan.order.before(0, 4));
  EXPECT_FALSE(plan.order.before(4, 0));
  EXPECT_FALSE(plan.order.before(2, 2));
}

TEST(LanesTest, LanesAreAscendingWhateverTheProgramOrder) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  mix(program, "out", {LaneKind::kCopyOut, 0}, {read(x)});
  mix(program, "c1", comm_lane(1), {read(x)});
  mix(program, "c0", comm_lane(0), {read(x)});
  mix(program, "k", kComputeLane, {read(x)});
  const LanePlan plan = planned(program);
  EXPECT_THAT(plan.lanes, ElementsAre(kComputeLane, comm_lane(0), comm_lane(1), Lane{LaneKind::kCopyOut, 0}));
  EXPECT_EQ(plan.ops[0].lane, 3u);
  EXPECT_EQ(plan.ops[3].lane, 0u);
  EXPECT_EQ(plan.events, 0u);  // Readers do not wait for readers.
  EXPECT_FALSE(plan.order.before(0, 3));
}

// Backward, its all-reduce beside it, and the optimizer: one event each way.
TEST(LanesTest, AllReduceRunsBesideTheBackwardThatFollows) {
  Program program;
  const Tensor g0 = persistent(program, "g0", 8);
  const Tensor g1 = persistent(program, "g1", 8);
  const Tensor w = persistent(program, "w", 8);
  const OpId backward1 = mix(program, "backward1", kComputeLane, {write(g1)});
  const OpId reduce1 = mix(program, "reduce1", comm_lane(0), {update(g1)});
  const OpId backward0 = mix(program, "backward0", kComputeLane, {write(g0)});
  const OpId reduce0 = mix(program, "reduce0", comm_lane(0), {update(g0)});
  const OpId adam = mix(program, "adam", kComputeLane, {read(g0), read(g1), update(w)});
  const LanePlan plan = planned(program);
  EXPECT_EQ(plan.events, 3u);
  EXPECT_EQ(plan.ops[reduce1].waits, std::vector<uint32_t>{plan.ops[backward1].record});
  EXPECT_EQ(plan.ops[reduce0].waits, std::vector<uint32_t>{plan.ops[backward0].record});
  EXPECT_EQ(plan.ops[adam].waits, std::vector<uint32_t>{plan.ops[reduce0].record});  // reduce1 is before it.
  EXPECT_EQ(plan.ops[reduce1].record, kNoEvent);
  EXPECT_FALSE(plan.order.before(reduce1, backward0));
  EXPECT_TRUE(plan.order.before(reduce1, adam));
}

TEST(LanesTest, AWaitThatAnotherLanesWaitImpliesIsLeftOut) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  const Tensor y = persistent(program, "y", 8);
  mix(program, "a", kComputeLane, {write(x)});
  mix(program, "b", comm_lane(0), {read(x), write(y)});
  mix(program, "c", comm_lane(1), {read(x), read(y)});
  const LanePlan plan = planned(program);
  EXPECT_EQ(plan.events, 2u);
  EXPECT_EQ(plan.ops[2].waits, std::vector<uint32_t>{plan.ops[1].record});
}

TEST(LanesTest, WhatALaneHasWaitedForItKnows) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  mix(program, "a", kComputeLane, {write(x)});
  mix(program, "b", comm_lane(0), {read(x)});
  mix(program, "c", comm_lane(0), {read(x)});
  const LanePlan plan = planned(program);
  EXPECT_THAT(plan.ops[1].waits, SizeIs(1));
  EXPECT_THAT(plan.ops[2].waits, IsEmpty());
}

// Without any one wait some edge is lost; with all of them none is. Checked by walking the plan.
bool reaches_all_edges(const Program& program, const Graph& graph, const LanePlan& plan, OpId op, size_t without) {
  const size_t ops = program.ops().size();
  std::vector<std::vector<bool>> before(ops, std::vector<bool>(ops, false));
  std::vector<OpId> last(plan.lanes.size(), static_cast<OpId>(ops)), recorder(plan.events);
  const auto join = [&](OpId later, OpId earlier) {
    before[later][earlier] = true;
    for (OpId i = 0; i < ops; ++i) before[later][i] = before[later][i] || before[earlier][i];
  };
  bool all = true;
  for (OpId i = 0; i < ops; ++i) {
    OpId& previous = last[plan.ops[i].lane];
    if (previous < ops) join(i, previous);
    for (size_t k = 0; k < plan.ops[i].waits.size(); ++k) {
      if (i != op || k != without) join(i, recorder[plan.ops[i].waits[k]]);
    }
    for (const Edge& edge : graph[i]) all = all && before[i][edge.from];
    previous = i;
    if (plan.ops[i].record != kNoEvent) recorder[plan.ops[i].record] = i;
  }
  return all;
}

TEST(LanesTest, WaitsAreSufficientAndMinimalOnRandomPrograms) {
  int waits = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = random_program(seed);
    const Graph graph = build_graph(program).value();
    const LanePlan plan = plan_lanes(program, graph);
    ASSERT_TRUE(reaches_all_edges(program, graph, plan, 0, 99));
    for (OpId op = 0; op < program.ops().size(); ++op) {
      for (size_t k = 0; k < plan.ops[op].waits.size(); ++k, ++waits) {
        ASSERT_FALSE(reaches_all_edges(program, graph, plan, op, k)) << "op " << op << " wait " << k;
      }
    }
  }
  EXPECT_GT(waits, 300);
}

}  // namespace
}  // namespace telar::engine
