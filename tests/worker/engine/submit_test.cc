// Runs that are submitted without waiting, and runs that replay a graph.
#include <gmock/gmock.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include "tests/fakes/device.h"
#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using testing::add;
using testing::comm_lane;
using ::testing::HasSubstr;
using testing::kComputeLane;
using testing::persistent;
using testing::read;
using testing::update;
using testing::write;

// A program that crosses lanes, adds 1 to x in each run and fails where it is told to.
class SubmitTest : public ::testing::Test {
 protected:
  SubmitTest() {
    x_ = persistent(program_, "x", 1);
    seen_ = persistent(program_, "seen", 1);
    add(program_, "count", kComputeLane, {update(x_)}, [this](const RunContext& context, backend::Stream&) {
      const int value = std::to_integer<int>(*context.addresses->at(x_)) + 1;
      *context.addresses->at(x_) = static_cast<std::byte>(value);
      return value == fail_at_ ? absl::DataLossError("as asked") : absl::OkStatus();
    });
    add(program_, "look", comm_lane(0), {read(x_), write(seen_)}, [this](const RunContext& context, backend::Stream&) {
      *context.addresses->at(seen_) = *context.addresses->at(x_);
      return absl::OkStatus();
    });
    plan_ = plan(program_).value();
  }

  std::unique_ptr<Executor> lanes(backend::Device& device, LaneOptions options = {}) {
    return create_lane_executor(program_, plan_, device, {}, options).value();
  }
  int value(const Executor& executor, const Tensor& tensor) { return std::to_integer<int>(*executor.address(tensor)); }

  int fail_at_ = 0;
  Program program_;
  Tensor x_, seen_;
  Plan plan_;
  fakes::FakeDevice gpu_{testing::create_device(), true};
  fakes::FakeDevice cpu_{testing::create_device()};
};

TEST_F(SubmitTest, WhatIsEnqueuedOnTheOriginIsBetweenTheRuns) {
  for (backend::Device* device : {static_cast<backend::Device*>(&gpu_), static_cast<backend::Device*>(&cpu_)}) {
    const auto executor = lanes(*device);
    std::byte results[40];
    for (std::byte& result : results) {
      ASSERT_TRUE(executor->submit().ok());
      executor->origin().copy(&result, executor->address(seen_), 1);
    }
    ASSERT_TRUE(executor->wait().ok());
    for (int i = 0; i < 40; ++i) EXPECT_EQ(std::to_integer<int>(results[i]), i + 1);
  }
}

TEST_F(SubmitTest, GoodRunsSayWhichRunFailed) {
  fail_at_ = 3;
  const auto executor = lanes(cpu_);
  absl::Status status;
  for (int run = 0; run < 5 && status.ok(); ++run) status = executor->submit();
  status = executor->wait();
  EXPECT_EQ(std::string(status.message()), "op 'count' on lane compute: as asked");
  EXPECT_EQ(executor->good_runs(), 2u);
  EXPECT_EQ(executor->submit(), status);
}

TEST_F(SubmitTest, TheFirstRunIsIssuedTheSecondCapturedAndTheOthersReplayed) {
  const auto executor = lanes(gpu_);
  EXPECT_THAT(executor->graph_state().why_not, HasSubstr("first run"));
  ASSERT_TRUE(executor->run().ok());
  EXPECT_FALSE(executor->graph_state().captured);
  for (int run = 2; run <= 10; ++run) {
    ASSERT_TRUE(executor->run().ok());
    EXPECT_TRUE(executor->graph_state().captured);
    EXPECT_EQ(value(*executor, seen_), run);
  }
  EXPECT_EQ(executor->graph_state().why_not, "");
  EXPECT_GT(executor->graph_state().nodes, 0u);
  EXPECT_EQ(gpu_.counts.captures, 1);
  EXPECT_EQ(gpu_.counts.launches, 9);
  EXPECT_EQ(executor->good_runs(), 10u);
}

TEST_F(SubmitTest, ARefusedCaptureRunsOpByOpAndSaysWhy) {
  gpu_.refuse = absl::InternalError("op 'sort' allocates");
  const auto executor = lanes(gpu_);
  for (int run = 1; run <= 5; ++run) {
    ASSERT_TRUE(executor->run().ok());
    EXPECT_EQ(value(*executor, seen_), run);
  }
  EXPECT_EQ(executor->graph_state().why_not, "op 'sort' allocates");
  EXPECT_EQ(gpu_.counts.captures, 1);  // Once and for all.
  EXPECT_EQ(gpu_.counts.launches, 0);
}

TEST_F(SubmitTest, GraphsCanBeTurnedOff) {
  const auto by_option = lanes(gpu_, {.graphs = false});
  setenv("TELAR_GRAPHS", "0", 1);
  const auto by_environment = lanes(gpu_);
  unsetenv("TELAR_GRAPHS");
  for (Executor* executor : {by_option.get(), by_environment.get()}) {
    for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
    EXPECT_EQ(executor->graph_state().why_not, "turned off");
  }
  EXPECT_EQ(gpu_.counts.captures, 0);
}

TEST_F(SubmitTest, ADeviceWithoutGraphsIsNamed) {
  const auto executor = lanes(cpu_);
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
  EXPECT_THAT(executor->graph_state().why_not, HasSubstr("no graphs"));
}

TEST_F(SubmitTest, ANewAddressIsCapturedAnew) {
  Program program;
  const Tensor x = testing::external(program, "x", 1);
  add(program, "count", kComputeLane, {update(x)}, [x](const RunContext& context, backend::Stream&) {
    std::byte& value = *context.addresses->at(x);
    value = static_cast<std::byte>(std::to_integer<int>(value) + 1);
    return absl::OkStatus();
  });
  const Plan planned = plan(program).value();
  const auto executor = create_lane_executor(program, planned, gpu_, {}).value();
  std::byte first{0}, second{0};
  for (std::byte* at : {&first, &second}) {
    executor->bind(x, at);
    ASSERT_TRUE(executor->run().ok());
    EXPECT_FALSE(executor->graph_state().captured);
    for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
    EXPECT_TRUE(executor->graph_state().captured);
    executor->bind(x, at);  // The same: nothing is lost.
    ASSERT_TRUE(executor->run().ok());
    EXPECT_TRUE(executor->graph_state().captured);
  }
  EXPECT_EQ(std::to_integer<int>(first), 5);
  EXPECT_EQ(std::to_integer<int>(second), 5);
  EXPECT_EQ(gpu_.counts.captures, 2);
}

TEST_F(SubmitTest, RunsAllocateNothingAndOnlyWaitSynchronizes) {
  for (fakes::FakeDevice* device : {&gpu_, &cpu_}) {
    const auto executor = lanes(*device);
    ASSERT_TRUE(executor->run().ok());
    const int allocations = device->counts.allocations, synchronizations = device->counts.synchronizations;
    for (int run = 0; run < 20; ++run) ASSERT_TRUE(executor->submit().ok());
    EXPECT_EQ(device->counts.synchronizations, synchronizations);
    ASSERT_TRUE(executor->wait().ok());
    EXPECT_EQ(device->counts.synchronizations, synchronizations + 2);  // Its streams.
    EXPECT_EQ(device->counts.allocations, allocations);
  }
}

TEST(DescribeTest, NamesArgumentsWithTypesAndShapes) {
  Program program;
  const Tensor x = program.persistent("x", DType::kBF16, {8, 4}, MemoryClass::kActivations);
  const Tensor y = program.transient("y", DType::kF32, {32}, MemoryClass::kActivations);
  const Program::Scope scope(program, "mb0/");
  const OpId op = program.record("cast", &backend::Kernels::cast, x.in(), y.out());
  EXPECT_EQ(program.describe(op), "op 'mb0/cast' (x bf16 [8, 4], y f32 [32]) on lane compute");
}

}  // namespace
}  // namespace telar::engine
