// Which op a device was at when it failed: by marks, the waits between lanes, and what executors say of it.
#include "worker/engine/run_marks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>

#include "tests/fakes/device.h"
#include "tests/worker/engine/testing.h"
#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

using testing::add;
using ::testing::AllOf;
using testing::comm_lane;
using ::testing::HasSubstr;
using testing::kComputeLane;
using ::testing::Not;
using testing::persistent;
using testing::read;
using testing::update;
using testing::write;

// Ops count0, count1, ... on the compute lane, of which the last is looked at by the other lane; all take 1.5 ms by
// their cost, so that every third leaves a mark in a graph. The device breaks down in one of them.
class RunMarksTest : public ::testing::Test {
 protected:
  static constexpr int kOps = 20;

  RunMarksTest() {
    gpu_.has_marks = true;
    x_ = persistent(program_, "x", 1);
    seen_ = persistent(program_, "seen", 1);
    for (int i = 0; i < kOps; ++i) add_op("count" + std::to_string(i), kComputeLane, {update(x_)});
    add_op("look", comm_lane(0), {read(x_), write(seen_)});
    plan_ = plan(program_).value();
  }
  ~RunMarksTest() override { unsetenv("TELAR_MARKS"); }

  void add_op(const std::string& name, Lane lane, std::vector<Access> accesses) {
    Op op;
    op.name = name;
    op.lane = lane;
    op.accesses = std::move(accesses);
    op.cost.flops = 1.5e12;
    op.run = [this, id = static_cast<OpId>(program_.ops().size())](const RunContext&, backend::Stream&) {
      return work(id);
    };
    program_.add_op(std::move(op));
  }
  absl::Status work(OpId op) {
    if (op == 0) ++run_;
    if (run_ == break_run_ && op == break_op_) gpu_.break_down();
    return absl::OkStatus();
  }
  // The message behind `runs` runs that were submitted together, the device breaking down in one of them.
  std::string message(int run, OpId op, int runs) {
    break_run_ = run;
    break_op_ = op;
    executor_ = create_lane_executor(program_, plan_, gpu_, {}).value();
    for (int i = 0; i < runs; ++i) EXPECT_TRUE(executor_->submit().ok());
    return std::string(executor_->wait().message());
  }

  int break_run_ = 0;
  OpId break_op_ = 0;
  std::atomic<int> run_{0};
  Program program_;
  Tensor x_, seen_;
  Plan plan_;
  fakes::FakeDevice gpu_{testing::create_device(), true};
  std::unique_ptr<Executor> executor_;
};

TEST_F(RunMarksTest, ARunThatIsIssuedOpByOpNamesTheOp) {
  EXPECT_EQ(message(1, 7, 1), "at op 'count7' on lane compute: CUDA error 700");
  EXPECT_EQ(executor_->failed_run(), 1u);
}

TEST_F(RunMarksTest, OfAGraphTheOpsBetweenTwoMarksAreNamedAndTheRun) {
  EXPECT_EQ(message(3, 7, 4),
            "at one of 3 ops from op 'count6' on lane compute to op 'count8' on lane compute: CUDA error 700");
  EXPECT_EQ(executor_->failed_run(), 3u);
}

TEST_F(RunMarksTest, TheLastOpOfALaneIsMarkedAndItsSuccessorsElsewhereAreNamedAlone) {
  EXPECT_EQ(message(4, kOps, 4), "at op 'look' on lane comm0: CUDA error 700");
  EXPECT_EQ(executor_->failed_run(), 4u);
}

TEST_F(RunMarksTest, AllOpsOfAGraphCanBeMarked) {
  setenv("TELAR_MARKS", "all", 1);
  EXPECT_EQ(message(3, 7, 4), "at op 'count7' on lane compute: CUDA error 700");
}

TEST_F(RunMarksTest, WithoutMarksTheMessageSaysHowToGetTheOp) {
  setenv("TELAR_MARKS", "0", 1);
  EXPECT_THAT(message(3, 7, 4), AllOf(HasSubstr("--executor sequential"), Not(HasSubstr("count"))));
  EXPECT_EQ(executor_->failed_run(), 0u);
}

TEST_F(RunMarksTest, AnErrorBetweenRunsIsBlamedOnNoOp) {
  executor_ = create_lane_executor(program_, plan_, gpu_, {}).value();
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor_->run().ok());
  gpu_.break_down();
  EXPECT_EQ(std::string(executor_->wait().message()), "while no op was running: CUDA error 700");
}

// Who is told of an error by a call need not be who caused it.
TEST_F(RunMarksTest, AnOpThatIsToldOfTheErrorOfAnOpBeforeIsNotBlamed) {
  Program program;
  const Tensor x = persistent(program, "x", 1);
  add(program, "culprit", kComputeLane, {update(x)}, [&](const RunContext&, backend::Stream&) {
    gpu_.break_down();
    return absl::OkStatus();
  });
  add(program, "between", kComputeLane, {update(x)},
      [](const RunContext&, backend::Stream&) { return absl::OkStatus(); });
  add(program, "told", kComputeLane, {update(x)},
      [](const RunContext&, backend::Stream&) { return absl::InternalError("CUDA error 700"); });
  const Plan planned = plan(program).value();
  const auto executor = create_lane_executor(program, planned, gpu_, {}).value();
  executor->submit().IgnoreError();
  EXPECT_EQ(std::string(executor->wait().message()),
            "at op 'culprit' on lane compute, found by op 'told' on lane compute: CUDA error 700");
}

TEST_F(RunMarksTest, AnOpWhoseCallFailsIsNamedAsItIs) {
  Program program;
  const Tensor x = persistent(program, "x", 1);
  add(program, "good", kComputeLane, {update(x)}, [](const RunContext&, backend::Stream&) { return absl::OkStatus(); });
  add(program, "bad", kComputeLane, {update(x)},
      [](const RunContext&, backend::Stream&) { return absl::InternalError("CUDA error 9"); });
  const Plan planned = plan(program).value();
  const auto executor = create_lane_executor(program, planned, gpu_, {}).value();
  executor->submit().IgnoreError();
  EXPECT_EQ(std::string(executor->wait().message()), "op 'bad' on lane compute: CUDA error 9");
}

// Any state that a device can be in: some ops are done, each with all before it; others run. Whatever runs is named,
// and nothing that its lane has marked.
TEST(MayBeRunning, HoldsAllThatRunsInAnyState) {
  size_t named = 0, ops = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Program program = testing::random_program(seed);
    const Plan planned = plan(program).value();
    std::mt19937_64 random(seed);
    std::vector<bool> marked;
    for (size_t op = 0; op < planned.ops.size(); ++op) marked.push_back(random() % 3 == 0);
    const auto leaves = [&](OpId op) { return static_cast<bool>(marked[op]); };
    const auto order = testing::random_topological_order(planned, seed);
    std::vector<OpId> recorder(planned.events, kNoOp);
    for (OpId op = 0; op < planned.ops.size(); ++op) {
      if (planned.ops[op].record != kNoEvent) recorder[planned.ops[op].record] = op;
    }
    // As the device does: a lane's ops in order, each behind its waits.
    std::vector<bool> done(planned.ops.size(), false);
    std::vector<OpId> next(planned.lanes.size(), 0), reached(planned.lanes.size(), kNoOp);
    const auto head = [&](uint32_t lane) {
      while (next[lane] < planned.ops.size() && planned.ops[next[lane]].lane != lane) ++next[lane];
      return next[lane];
    };
    const auto ready = [&](OpId op) {
      return std::ranges::all_of(planned.ops[op].waits, [&](uint32_t event) { return done[recorder[event]]; });
    };
    const size_t steps = random() % (planned.ops.size() + 1);
    for (size_t step = 0; step < steps; ++step) {
      std::vector<OpId> heads;
      for (uint32_t lane = 0; lane < planned.lanes.size(); ++lane) {
        if (const OpId op = head(lane); op < planned.ops.size() && ready(op)) heads.push_back(op);
      }
      ASSERT_FALSE(heads.empty());
      const OpId op = heads[random() % heads.size()];
      done[op] = true;
      ++next[planned.ops[op].lane];
      if (marked[op]) reached[planned.ops[op].lane] = op;
    }
    const std::vector<OpRange> ranges = may_be_running(planned, reached, leaves);
    ASSERT_EQ(ranges.size(), planned.lanes.size());
    for (uint32_t lane = 0; lane < planned.lanes.size(); ++lane) {
      const OpId op = head(lane);
      if (op < planned.ops.size() && ready(op)) {
        EXPECT_TRUE(ranges[lane].holds(op)) << "seed " << seed << ", op " << op;
      }
      if (reached[lane] != kNoOp && ranges[lane].count > 0) {
        EXPECT_GT(ranges[lane].first, reached[lane]) << "seed " << seed;
      }
      named += ranges[lane].count;
    }
    ops += planned.ops.size();
  }
  EXPECT_LT(named, ops / 2);  // It does leave something out.
}

}  // namespace
}  // namespace telar::engine
