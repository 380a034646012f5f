#include "worker/engine/trace.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/worker/engine/testing.h"
#include "worker/engine/plan.h"

namespace telar::engine {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

enum : uint32_t { kOnCompute, kOnDp, kOnPp, kOnCopyOut };

TracedOp op(uint32_t lane, double start, double stop, bool receives = false) {
  return {.name = "op", .lane = lane, .receives = receives, .start = start, .stop = stop};
}

Trace trace_with(std::vector<TracedOp> ops, double seconds = 10) {
  return {.seconds = seconds,
          .lanes = {{"compute", LaneKind::kCompute},
                    {"dp", LaneKind::kComm},
                    {"pp01", LaneKind::kComm},
                    {"copy_out", LaneKind::kCopyOut}},
          .ops = std::move(ops)};
}

void expect_figures(const Trace& trace, double compute, double communication, double exposed, double wait,
                    double idle) {
  const TraceFigures figures = figures_of(trace);
  EXPECT_THAT(figures.compute, DoubleNear(compute, 1e-12));
  EXPECT_THAT(figures.communication, DoubleNear(communication, 1e-12));
  EXPECT_THAT(figures.exposed, DoubleNear(exposed, 1e-12));
  EXPECT_THAT(figures.wait, DoubleNear(wait, 1e-12));
  EXPECT_THAT(figures.idle, DoubleNear(idle, 1e-12));
}

TEST(TraceFiguresTest, NothingIsAllIdle) { expect_figures(trace_with({}), 0, 0, 0, 0, 10); }

TEST(TraceFiguresTest, WhatRunsUnderComputeIsNotExposed) {
  expect_figures(trace_with({op(kOnCompute, 0, 10), op(kOnDp, 2, 5)}), 10, 3, 0, 0, 0);
}

TEST(TraceFiguresTest, WhatSticksOutIs) {
  // compute  ####..##..
  // dp       ..####....
  expect_figures(trace_with({op(kOnCompute, 0, 4), op(kOnDp, 2, 6), op(kOnCompute, 6, 8)}), 6, 4, 2, 0, 2);
}

TEST(TraceFiguresTest, TwoLanesAtOnceCountOnceTogetherAndEachForItself) {
  // compute  ##......##
  // dp       .####.....
  // pp01     ..######..
  const Trace trace = trace_with({op(kOnCompute, 0, 2), op(kOnDp, 1, 5), op(kOnPp, 2, 8), op(kOnCompute, 8, 10)});
  expect_figures(trace, 4, 7, 6, 0, 0);
  const TraceFigures figures = figures_of(trace);
  EXPECT_THAT(figures.lanes[kOnDp].busy, DoubleNear(4, 1e-12));
  EXPECT_THAT(figures.lanes[kOnDp].exposed, DoubleNear(3, 1e-12));
  EXPECT_THAT(figures.lanes[kOnPp].busy, DoubleNear(6, 1e-12));
  EXPECT_THAT(figures.lanes[kOnPp].exposed, DoubleNear(6, 1e-12));
  EXPECT_EQ(figures.lanes[kOnCompute].exposed, 0);
}

TEST(TraceFiguresTest, AReceiveThatComputeWaitsForIsWaiting) {
  // compute  ##...###..
  // recv     .####.....   1 under compute, 3 waited for
  // send     ........#.   exposed, but nobody waits for another rank
  const Trace trace = trace_with({op(kOnCompute, 0, 2), op(kOnPp, 1, 5, true), op(kOnCompute, 5, 8), op(kOnPp, 8, 9)});
  expect_figures(trace, 5, 5, 4, 3, 1);
}

TEST(TraceFiguresTest, CopiesAreNoCommunication) {
  const Trace trace = trace_with({op(kOnCompute, 0, 2), op(kOnCopyOut, 1, 6)});
  expect_figures(trace, 2, 0, 0, 0, 8);
  EXPECT_THAT(figures_of(trace).lanes[kOnCopyOut].exposed, DoubleNear(4, 1e-12));
}

TEST(TraceFiguresTest, OpsThatTouchAndOpsOfNoLengthAreNoGaps) {
  expect_figures(
      trace_with({op(kOnCompute, 0, 2), op(kOnCompute, 2, 2), op(kOnCompute, 2, 5), op(kOnDp, 1, 3), op(kOnDp, 3, 4)}),
      5, 3, 0, 0, 5);
}

TEST(TraceTest, ChromeJsonHasARowALaneAndAnEventAnOp) {
  Trace trace = trace_with({op(kOnCompute, 0.001, 0.003), op(kOnDp, 0.002, 0.0025)}, 0.004);
  trace.rank = 3;
  trace.step = 12;
  trace.pp = 1;
  trace.clock = {.node = 2,
                 .monotonic = 50,
                 .wall = 1.75e9 + 1,
                 .start = 49,
                 .reference = "c",
                 .offset = -3,
                 .offset_error = 1e-5};
  trace.ops[0].portion = {.stage = 1, .micro_batch = 0};
  trace.ops[1].name = "grads \"0\"";
  trace.ops[1].phase = Phase::kGradComm;
  trace.ops[1].bytes = 4096;
  const nlohmann::json json = nlohmann::json::parse(to_chrome_json(trace));
  const nlohmann::json& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 3u + 2 * 4 + 2);
  EXPECT_EQ(events[0]["args"]["name"], "rank 3");
  EXPECT_EQ(events[1]["args"]["labels"], "pipeline 1, replica 0, slice 0, node of rank 2");
  EXPECT_EQ(events[2]["args"]["sort_index"], 3);
  EXPECT_EQ(events[5]["name"], "thread_name");
  EXPECT_EQ(events[5]["args"]["name"], "dp");
  EXPECT_EQ(events[5]["tid"], 1);
  EXPECT_EQ(events[events.size() - 2]["args"]["stage"], 1);
  EXPECT_EQ(events[events.size() - 2]["args"]["micro_batch"], 0);
  const nlohmann::json& event = events.back();
  EXPECT_EQ(event["ph"], "X");
  EXPECT_EQ(event["name"], "grads \"0\"");
  EXPECT_EQ(event["cat"], "grad_comm");
  EXPECT_EQ(event["pid"], 3);
  EXPECT_EQ(event["tid"], 1);
  EXPECT_NEAR(event["ts"].get<double>(), 2000, 1e-6);
  EXPECT_NEAR(event["dur"].get<double>(), 500, 1e-6);
  EXPECT_EQ(event["args"]["bytes"], 4096);
  const nlohmann::json& told = json["telar"];
  EXPECT_EQ(told["rank"], 3);
  EXPECT_EQ(told["step"], 12);
  EXPECT_EQ(told["start"], 1.75e9);
  EXPECT_EQ(told["pp"], 1);
  EXPECT_EQ(told["clock"]["node"], 2);
  EXPECT_EQ(told["clock"]["start"], 49);
  EXPECT_EQ(told["clock"]["reference"], "c");
  EXPECT_EQ(told["clock"]["offset"], -3);
  EXPECT_NEAR(told["compute"].get<double>(), 0.002, 1e-12);
  EXPECT_NEAR(told["lanes"][1]["busy"].get<double>(), 0.0005, 1e-12);
}

// Both ends of a message, and all calls of a collective, have the same numbers in their ranks' traces.
TEST(TraceTest, CallsAreNumberedAsTheirPeersNumberThem) {
  const std::vector<backend::Group> groups = {{"world.0", {4, 6, 7}}, {"ring.4", {4, 6}}};
  const auto program_of = [](int self, int other) {
    Program program;
    const Tensor x = testing::persistent(program, "x", 8), y = testing::persistent(program, "y", 8);
    using backend::Communicator;
    program.record("a", 0, &Communicator::all_reduce, backend::ReduceOp::kSum, x.inout());
    program.record("b", 1, &Communicator::exchange, other, x.in(), other, y.out());
    if (self == 0) program.record("c", 1, &Communicator::send, other, x.in());
    if (self == 1) program.record("c", 1, &Communicator::recv, other, y.out());
    program.record("d", 0, &Communicator::broadcast, 2, x.inout());
    return program;
  };
  const Program first = program_of(0, 1), second = program_of(1, 0);
  const Trace at_first = make_trace(first, plan(first).value(), groups, 4);
  const Trace at_second = make_trace(second, plan(second).value(), groups, 6);
  EXPECT_EQ(at_first.ops[0].met, 0u);
  EXPECT_EQ(at_first.ops[3].met, 1u);
  EXPECT_EQ(at_first.ops[3].root, 7);
  EXPECT_EQ(at_first.ops[1].to, 6);
  EXPECT_EQ(at_first.ops[1].from, 6);
  EXPECT_EQ(at_first.ops[1].sent, 0u);
  EXPECT_EQ(at_first.ops[2].to, 6);
  EXPECT_EQ(at_first.ops[2].from, -1);
  EXPECT_EQ(at_first.ops[2].sent, 1u);
  EXPECT_EQ(at_second.ops[2].from, 4);
  EXPECT_EQ(at_second.ops[2].received, 1u);
  EXPECT_EQ(at_second.ops[1].received, 0u);
  const nlohmann::json json = nlohmann::json::parse(to_chrome_json(at_second));
  const nlohmann::json args = json["traceEvents"][json["traceEvents"].size() - 2]["args"];
  EXPECT_EQ(args["comm"], "recv");
  EXPECT_EQ(args["from"], 4);
  EXPECT_EQ(args["received"], 1);
  EXPECT_FALSE(args.contains("met"));
}

TEST(TraceTest, TheLineNamesEachGroup) {
  Trace trace = trace_with({op(kOnCompute, 0, 0.004), op(kOnDp, 0.002, 0.006)}, 0.008);
  trace.step = 7;
  EXPECT_EQ(to_line(trace),
            "step 7 took 8.00 ms: compute 4.00, communication 4.00, exposed 2.00 (of it waiting for a receive 0.00), "
            "idle 2.00; dp 4.00 (exposed 2.00), pp01 0.00 (exposed 0.00), copy_out 0.00 (exposed 0.00)");
}

}  // namespace
}  // namespace telar::engine
