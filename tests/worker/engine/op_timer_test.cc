#include "worker/engine/op_timer.h"

#include <gmock/gmock.h>

#include <chrono>

#include "tests/fakes/device.h"
#include "tests/worker/engine/testing.h"
#include "worker/engine/trace.h"

namespace telar::engine {
namespace {

using testing::add;
using testing::comm_lane;
using testing::kComputeLane;
using testing::persistent;
using testing::read;
using testing::update;
using testing::write;

// A host's clock that is not the one of the machine.
double shifted_seconds() {
  return 1000 + std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// compute: a, then b behind the collective; comm0: the collective between them, comm1: one that nobody waits for.
class OpTimerTest : public ::testing::Test {
 protected:
  OpTimerTest() {
    const Tensor x = persistent(program_, "x", 8), y = persistent(program_, "y", 8), z = persistent(program_, "z", 8);
    const auto busy = [](const RunContext&, backend::Stream&) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
      while (std::chrono::steady_clock::now() < until) {
      }
      return absl::OkStatus();
    };
    a_ = add(program_, "a", kComputeLane, {write(x)}, busy);
    reduce_ = add(program_, "reduce", comm_lane(0), {update(x)}, busy);
    beside_ = add(program_, "beside", comm_lane(1), {write(z)}, busy);
    next_ = add(program_, "next", kComputeLane, {write(y)}, busy);
    b_ = add(program_, "b", kComputeLane, {read(x)}, busy);
    plan_ = plan(program_).value();
  }
  Program program_;
  Plan plan_;
  OpId a_, reduce_, beside_, next_, b_;
};

TEST_F(OpTimerTest, TimesAreInOrderAndOpsOfALaneDoNotOverlap) {
  const auto device = testing::create_device();
  const auto executor = create_lane_executor(program_, plan_, *device, {}).value();
  const auto timer = OpTimer::create(plan_, *device, shifted_seconds).value();
  ASSERT_TRUE(executor->run().ok());
  const double before = shifted_seconds();
  ASSERT_TRUE(executor->submit_observed(*timer).ok());
  ASSERT_TRUE(executor->wait().ok());
  const double after = shifted_seconds();
  const RunTimes times = timer->times().value();

  ASSERT_EQ(times.ops.size(), 5u);
  for (const OpTime& op : times.ops) {
    EXPECT_GE(op.start, 0);
    EXPECT_GE(op.stop - op.start, 0.002);
    EXPECT_LE(op.stop, times.seconds);
  }
  EXPECT_GE(times.ops[reduce_].start, times.ops[a_].stop);
  EXPECT_EQ(times.ops[next_].start, times.ops[a_].stop);  // It waits for nothing.
  EXPECT_GE(times.ops[b_].start, times.ops[reduce_].stop);
  EXPECT_GE(times.ops[b_].start, times.ops[next_].stop);
  EXPECT_EQ(times.ops[beside_].start, 0);
  EXPECT_GT(times.issued, 0);
  // By the host's clock the run lies where the host saw it, to the precision of a reading of the clock.
  EXPECT_GT(times.start, before - 0.05);
  EXPECT_LT(times.start + times.seconds, after + 0.05);
  EXPECT_GE(times.start_error, 0);
  EXPECT_LT(times.start_error, 0.05);
}

TEST_F(OpTimerTest, OneTimerTakesTheTimesOfRunAfterRun) {
  const auto device = testing::create_device();
  const auto executor = create_lane_executor(program_, plan_, *device, {}).value();
  const auto timer = OpTimer::create(plan_, *device).value();
  Trace trace = make_trace(program_, plan_, {}, 0);
  double last = 0;
  for (int run = 0; run < 3; ++run) {
    ASSERT_TRUE(executor->submit_observed(*timer).ok());
    ASSERT_TRUE(executor->wait().ok());
    const RunTimes times = timer->times().value();
    EXPECT_GE(times.start, last);  // Behind the run before.
    last = times.start + times.ops[b_].stop;
    set_times(trace, times);
    EXPECT_EQ(trace.ops[b_].stop, times.ops[b_].stop);
    EXPECT_EQ(trace.clock.start, times.start);
    EXPECT_EQ(trace.seconds, times.seconds);
  }
}

TEST_F(OpTimerTest, GroupsHaveTheirNamesInTheTrace) {
  const std::vector<backend::Group> groups = {{"dp", {0, 1}}};
  const Trace trace = make_trace(program_, plan_, groups, 0);
  EXPECT_EQ(trace.lanes[0].name, "compute");
  EXPECT_EQ(trace.lanes[1].name, "dp");
  EXPECT_EQ(trace.lanes[2].name, "comm1");
  EXPECT_EQ(trace.ops[reduce_].name, "reduce");
  EXPECT_EQ(trace.ops[reduce_].lane, 1u);
}

TEST_F(OpTimerTest, AnObservedRunIsNotCapturedAndLeavesTheGraphAlone) {
  fakes::FakeDevice gpu(testing::create_device(), true);
  const auto executor = create_lane_executor(program_, plan_, gpu, {}).value();
  const auto timer = OpTimer::create(plan_, gpu).value();
  ASSERT_TRUE(executor->submit_observed(*timer).ok());  // The first run.
  ASSERT_TRUE(executor->submit_observed(*timer).ok());
  EXPECT_EQ(gpu.counts.captures, 0);
  ASSERT_TRUE(executor->submit().ok());
  EXPECT_EQ(gpu.counts.captures, 1);
  ASSERT_TRUE(executor->submit_observed(*timer).ok());
  ASSERT_TRUE(executor->submit().ok());
  ASSERT_TRUE(executor->wait().ok());
  EXPECT_EQ(gpu.counts.captures, 1);
  EXPECT_EQ(gpu.counts.launches, 2);
  EXPECT_EQ(executor->good_runs(), 5u);
  EXPECT_TRUE(timer->times().ok());
}

TEST_F(OpTimerTest, OtherExecutorsRefuse) {
  const auto device = testing::create_device();
  const auto executor = create_sequential_executor(program_, plan_, *device, {}).value();
  const auto timer = OpTimer::create(plan_, *device).value();
  EXPECT_EQ(executor->submit_observed(*timer).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace telar::engine
