#include "worker/engine/trace.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace telar::engine {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

enum : uint32_t { kCompute, kDp, kPp, kCopyOutLane };

TracedOp op(uint32_t lane, double start, double stop, bool receives = false) {
  return {.name = "op", .lane = lane, .receives = receives, .start = start, .stop = stop};
}

Trace trace_of(std::vector<TracedOp> ops, double seconds = 10) {
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

TEST(TraceFiguresTest, NothingIsAllIdle) { expect_figures(trace_of({}), 0, 0, 0, 0, 10); }

TEST(TraceFiguresTest, WhatRunsUnderComputeIsNotExposed) {
  expect_figures(trace_of({op(kCompute, 0, 10), op(kDp, 2, 5)}), 10, 3, 0, 0, 0);
}

TEST(TraceFiguresTest, WhatSticksOutIs) {
  // compute  ####..##..
  // dp       ..####....
  expect_figures(trace_of({op(kCompute, 0, 4), op(kDp, 2, 6), op(kCompute, 6, 8)}), 6, 4, 2, 0, 2);
}

TEST(TraceFiguresTest, TwoLanesAtOnceCountOnceTogetherAndEachForItself) {
  // compute  ##......##
  // dp       .####.....
  // pp01     ..######..
  const Trace trace = trace_of({op(kCompute, 0, 2), op(kDp, 1, 5), op(kPp, 2, 8), op(kCompute, 8, 10)});
  expect_figures(trace, 4, 7, 6, 0, 0);
  const TraceFigures figures = figures_of(trace);
  EXPECT_THAT(figures.lanes[kDp].busy, DoubleNear(4, 1e-12));
  EXPECT_THAT(figures.lanes[kDp].exposed, DoubleNear(3, 1e-12));
  EXPECT_THAT(figures.lanes[kPp].busy, DoubleNear(6, 1e-12));
  EXPECT_THAT(figures.lanes[kPp].exposed, DoubleNear(6, 1e-12));
  EXPECT_EQ(figures.lanes[kCompute].exposed, 0);
}

TEST(TraceFiguresTest, AReceiveThatComputeWaitsForIsWaiting) {
  // compute  ##...###..
  // recv     .####.....   1 under compute, 3 waited for
  // send     ........#.   exposed, but nobody waits for another rank
  const Trace trace = trace_of({op(kCompute, 0, 2), op(kPp, 1, 5, true), op(kCompute, 5, 8), op(kPp, 8, 9)});
  expect_figures(trace, 5, 5, 4, 3, 1);
}

TEST(TraceFiguresTest, CopiesAreNoCommunication) {
  const Trace trace = trace_of({op(kCompute, 0, 2), op(kCopyOutLane, 1, 6)});
  expect_figures(trace, 2, 0, 0, 0, 8);
  EXPECT_THAT(figures_of(trace).lanes[kCopyOutLane].exposed, DoubleNear(4, 1e-12));
}

TEST(TraceFiguresTest, OpsThatTouchAndOpsOfNoLengthAreNoGaps) {
  expect_figures(trace_of({op(kCompute, 0, 2), op(kCompute, 2, 2), op(kCompute, 2, 5), op(kDp, 1, 3), op(kDp, 3, 4)}),
                 5, 3, 0, 0, 5);
}

TEST(TraceTest, ChromeJsonHasARowALaneAndAnEventAnOp) {
  Trace trace = trace_of({op(kCompute, 0.001, 0.003), op(kDp, 0.002, 0.0025)}, 0.004);
  trace.rank = 3;
  trace.step = 12;
  trace.start = 1.75e9;
  trace.ops[1].name = "grads \"0\"";
  trace.ops[1].phase = Phase::kGradComm;
  trace.ops[1].bytes = 4096;
  const nlohmann::json json = nlohmann::json::parse(to_chrome_json(trace));
  const nlohmann::json& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 1u + 2 * 4 + 2);
  EXPECT_EQ(events[0]["args"]["name"], "rank 3");
  EXPECT_EQ(events[3]["name"], "thread_name");
  EXPECT_EQ(events[3]["args"]["name"], "dp");
  EXPECT_EQ(events[3]["tid"], 1);
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
  EXPECT_NEAR(told["compute"].get<double>(), 0.002, 1e-12);
  EXPECT_NEAR(told["lanes"][1]["busy"].get<double>(), 0.0005, 1e-12);
}

TEST(TraceTest, TheLineNamesEachGroup) {
  Trace trace = trace_of({op(kCompute, 0, 0.004), op(kDp, 0.002, 0.006)}, 0.008);
  trace.step = 7;
  EXPECT_EQ(to_line(trace),
            "step 7 took 8.00 ms: compute 4.00, communication 4.00, exposed 2.00 (of it waiting for a receive 0.00), "
            "idle 2.00; dp 4.00 (exposed 2.00), pp01 0.00 (exposed 0.00), copy_out 0.00 (exposed 0.00)");
}

}  // namespace
}  // namespace telar::engine
