// A closed gate holds what is behind it and nothing else, whichever executor runs.
#include "worker/engine/gate.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/fakes/device.h"
#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using testing::add;
using testing::comm_lane;
using testing::kComputeLane;
using testing::persistent;
using testing::read;
using testing::update;
using testing::write;

// A number that one thread raises and others wait for.
class Count {
 public:
  void raise() {
    const std::lock_guard lock(mutex_);
    ++value_;
    changed_.notify_all();
  }
  void await(int value) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return value_ >= value; });
  }
  int value() {
    const std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int value_ = 0;
};

// Forward on two lanes, then the gate, then an update of what the forward reads.
class GateTest : public ::testing::Test {
 protected:
  GateTest() {
    const Tensor x = persistent(program_, "x", 1), y = persistent(program_, "y", 1);
    add(program_, "forward", kComputeLane, {read(x), write(y)}, [this](const RunContext&, backend::Stream&) {
      forward_.raise();
      return absl::OkStatus();
    });
    add(program_, "reduce", comm_lane(0), {update(y)}, [this](const RunContext&, backend::Stream&) {
      reduce_.raise();
      return absl::OkStatus();
    });
    program_.record_gate("gate");
    add(program_, "update", kComputeLane, {read(y), update(x)}, [this](const RunContext&, backend::Stream&) {
      update_.raise();
      return absl::OkStatus();
    });
    add(program_, "tell", comm_lane(0), {read(x)},
        [](const RunContext&, backend::Stream&) { return absl::OkStatus(); });
    plan_ = plan(program_).value();
    hold_ = [this](backend::Stream&) {
      open_.await(1);
      return absl::OkStatus();
    };
  }

  // Two runs before, one that is held, one behind it, all submitted before anything is released.
  void expect_held(Executor& executor, fakes::FakeDevice& device, Gate& gate) {
    device.behind_timed_record = [this](backend::Stream&) {
      at_gate_.raise();
      return absl::OkStatus();
    };
    const auto outside = device.create_stream("outside", false).value();
    ASSERT_TRUE(executor.run().ok());
    ASSERT_TRUE(executor.run().ok());
    EXPECT_EQ(gate.seconds_held().value(), 0);
    outside->submit(hold_);
    gate.close_until(*outside);
    EXPECT_TRUE(gate.closed());
    std::thread submitter([&] {  // Blocks, where the executor does.
      EXPECT_TRUE(executor.submit().ok());
      EXPECT_FALSE(gate.closed());
      EXPECT_TRUE(executor.submit().ok());
    });
    forward_.await(3);
    reduce_.await(3);
    at_gate_.await(1);  // The time that is told begins when its lane gets there, which may be long after the forward.
    EXPECT_EQ(update_.value(), 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(update_.value(), 2);
    EXPECT_EQ(forward_.value(), 3);
    open_.raise();
    submitter.join();
    ASSERT_TRUE(executor.wait().ok());
    EXPECT_EQ(update_.value(), 4);
    EXPECT_GE(gate.seconds_held().value(), 0.005);
    ASSERT_TRUE(executor.run().ok());
    EXPECT_EQ(update_.value(), 5);
    EXPECT_TRUE(outside->synchronize().ok());
  }

  Program program_;
  Plan plan_;
  Count forward_, reduce_, at_gate_, update_, open_;
  std::function<absl::Status(backend::Stream&)> hold_;
};

TEST_F(GateTest, HoldsTheLanesBehindIt) {
  fakes::FakeDevice cpu(testing::create_device());
  const auto gate = Gate::create(cpu).value();
  const auto executor = create_lane_executor(program_, plan_, cpu, {}).value();
  executor->set_gate(gate.get());
  expect_held(*executor, cpu, *gate);
}

TEST_F(GateTest, StandsBetweenTwoGraphs) {
  fakes::FakeDevice gpu(testing::create_device(), true);
  const auto gate = Gate::create(gpu).value();
  const auto executor = create_lane_executor(program_, plan_, gpu, {}).value();
  executor->set_gate(gate.get());
  expect_held(*executor, gpu, *gate);
  EXPECT_TRUE(executor->graph_state().captured);
  EXPECT_EQ(gpu.counts.captures, 2);
  EXPECT_EQ(gpu.counts.launches, 2 * 4);  // All runs but the first.
}

TEST_F(GateTest, HoldsTheSequentialAndTheProfilingExecutor) {
  for (const auto create : {+[](const Program&program, const Plan&plan, backend::Device&device) {
                              return create_sequential_executor(program, plan, device, {});
                            },
                            +[](const Program&program, const Plan&plan, backend::Device&device) {
                              return create_profiling_executor(program, plan, device, {});
                            }}) {
    const auto device = testing::create_device();
    const auto gate = Gate::create(*device).value();
    const auto executor = create(program_, plan_, *device).value();
    executor->set_gate(gate.get());
    const int before = update_.value();
    const auto outside = device->create_stream("outside", false).value();
    Count open;
    const std::function<absl::Status(backend::Stream&)> hold = [&](backend::Stream&) {
      open.await(1);
      return absl::OkStatus();
    };
    outside->submit(hold);
    gate->close_until(*outside);
    const int forward = forward_.value();
    std::thread submitter([&] { EXPECT_TRUE(executor->submit().ok()); });
    forward_.await(forward + 1);
    EXPECT_EQ(update_.value(), before);
    open.raise();
    submitter.join();
    ASSERT_TRUE(executor->wait().ok());
    EXPECT_EQ(update_.value(), before + 1);
    EXPECT_TRUE(outside->synchronize().ok());
  }
}

TEST_F(GateTest, WithoutOneARunIsOneGraph) {
  fakes::FakeDevice gpu(testing::create_device(), true);
  const auto executor = create_lane_executor(program_, plan_, gpu, {}).value();
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(gpu.counts.captures, 1);
  EXPECT_EQ(gpu.counts.launches, 2);
  // One that is set later is heeded, and taken away again is forgotten.
  const auto gate = Gate::create(gpu).value();
  executor->set_gate(gate.get());
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(gpu.counts.captures, 3);
  executor->set_gate(nullptr);
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(gpu.counts.captures, 4);
  EXPECT_EQ(update_.value(), 9);
}

}  // namespace
}  // namespace telar::engine
