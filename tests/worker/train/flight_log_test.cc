// What a rank writes down of its programs' calls, as its executors tell of them.
#include "worker/train/flight_log.h"

#include <stdlib.h>

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "worker/flight/reader.h"

namespace telar::train {
namespace {

using engine::CommKind;
using flight::State;

engine::Op call(uint32_t group, CommKind kind, uint64_t elements) {
  engine::Op op;
  op.comm.emplace();
  op.comm->group = group;
  op.comm->kind = kind;
  op.comm->elements = elements;
  op.comm->dtype = engine::DType::kF32;
  return op;
}

class FlightLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/flight"; }
  std::unique_ptr<FlightLog> create(bool asynchronous) {
    return FlightLog::create(path(), {{"world.0", {0, 1}}, {"tensor.0", {0, 1}}}, asynchronous);
  }
  std::vector<flight::Call> calls() { return flight::read_calls(path(), 64).value(); }

  const engine::Op reduce_ = call(0, CommKind::kAllReduce, 10), gather_ = call(1, CommKind::kAllGather, 3);
  std::string folder_;
};

TEST_F(FlightLogTest, OnTheHostACallRunsAndIsDone) {
  const auto log = create(false);
  engine::OpListener& steps = log->steps(40);
  steps.before(reduce_, 1);
  steps.after(reduce_, true);
  steps.before(gather_, 2);
  log->others().before(reduce_, 9);
  log->others().after(reduce_, false);
  const auto read = calls();
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].state, State::kDone);
  EXPECT_EQ(read[0].op, "all_reduce");
  EXPECT_EQ(read[0].bytes, 40u);
  EXPECT_EQ(read[0].step, 41u);
  EXPECT_EQ(read[1].state, State::kRunning);
  EXPECT_EQ(read[1].op, "all_gather");
  EXPECT_EQ(read[1].group, "tensor.0");
  EXPECT_EQ(read[1].step, 42u);
  EXPECT_EQ(read[2].state, State::kRunning);  // It failed: it did not come to its end.
  EXPECT_EQ(read[2].step, 0u);
  EXPECT_EQ(read[2].sequence, 2u);
}

TEST_F(FlightLogTest, OnADeviceCallsAreQueuedUntilTheirStepIsOver) {
  const auto log = create(true);
  engine::OpListener& steps = log->steps(0);
  for (uint64_t run = 1; run <= 2; ++run) {
    steps.before(reduce_, run);
    steps.after(reduce_, true);
    log->submitted();
  }
  EXPECT_EQ(calls()[0].state, State::kQueued);
  log->finished_one();
  EXPECT_EQ(calls()[0].state, State::kDone);
  EXPECT_EQ(calls()[1].state, State::kQueued);
  log->finished_one();
  EXPECT_EQ(calls()[1].state, State::kDone);
  log->others().before(gather_, 1);
  EXPECT_EQ(calls()[2].state, State::kQueued);
  log->finished_all();
  EXPECT_EQ(calls()[2].state, State::kDone);
  EXPECT_FALSE(log->waited());
}

TEST_F(FlightLogTest, WaitingIsTimeInCallsWithNothingBeside) {
  const auto log = create(false);
  engine::OpListener& steps = log->steps(0);
  const engine::Op work;
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  const uint64_t start = flight::now_ns();
  steps.before(reduce_, 1);
  pause();
  steps.before(work, 1);
  const double alone = static_cast<double>(flight::now_ns() - start) * 1e-9;
  pause();
  steps.after(reduce_, true);
  steps.after(work, true);
  const double waited = log->waited().value();
  EXPECT_GE(waited, 0.02);
  EXPECT_LE(waited, alone);  // The rest was beside work.
  pause();
  EXPECT_DOUBLE_EQ(log->waited().value(), 0);
}

TEST_F(FlightLogTest, WhatARankIsAtIsRestoredBehindIt) {
  const auto log = create(false);
  log->set_activity(flight::Activity::kTraining);
  {
    const Doing saving(*log, flight::Activity::kSaving);
    EXPECT_EQ(flight::glance(path())->activity, flight::Activity::kSaving);
  }
  EXPECT_EQ(flight::glance(path())->activity, flight::Activity::kTraining);
}

TEST_F(FlightLogTest, GoesWithoutAFileThatCannotBeMade) {
  const auto log = FlightLog::create(folder_ + "/none/flight", {{"world.0", {0, 1}}}, false);
  engine::OpListener& steps = log->steps(0);
  steps.before(reduce_, 1);
  steps.after(reduce_, true);
  log->set_activity(flight::Activity::kTraining);
  EXPECT_TRUE(log->waited().has_value());
  const auto alone = FlightLog::create("", {}, false);
  EXPECT_FALSE(alone->waited());  // There is nobody to wait for.
}

}  // namespace
}  // namespace telar::train
