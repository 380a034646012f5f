// Every executor tells a listener of each op that it runs, and of runs that a graph does for it.
#include "worker/engine/op_listener.h"

#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "tests/fakes/device.h"
#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

class Listener final : public OpListener {
 public:
  void before(const Op& op, uint64_t run) override {
    const std::lock_guard lock(mutex_);
    text += op.name + "(" + std::to_string(run) + " ";
  }
  void after(const Op& op, bool good) override {
    const std::lock_guard lock(mutex_);
    text += op.name + (good ? ") " : "! ");
  }
  void replayed(const Program& program, uint64_t run) override {
    const std::lock_guard lock(mutex_);
    replays += std::to_string(program.ops().size()) + "@" + std::to_string(run) + " ";
  }
  std::string text, replays;

 private:
  std::mutex mutex_;
};

class OpListenerTest : public ::testing::Test {
 protected:
  OpListenerTest() {
    const Tensor a = testing::persistent(program_, "a", 64), b = testing::persistent(program_, "b", 64);
    testing::mix(program_, "x", testing::kComputeLane, {testing::update(a)});
    testing::add(program_, "y", testing::comm_lane(0), {testing::read(a), testing::write(b)},
                 [this](const RunContext&, backend::Stream&) {
                   return fail_ ? absl::UnavailableError("no peer") : absl::OkStatus();
                 });
  }

  Program program_;
  Listener listener_;
  bool fail_ = false;
};

TEST_F(OpListenerTest, HearsOfEachOpOfEachRun) {
  const Plan made = plan(program_).value();
  for (const auto create : {+[](const Program&program, const Plan&plan, backend::Device&device) {
                              return create_sequential_executor(program, plan, device, {});
                            },
                            +[](const Program&program, const Plan&plan, backend::Device&device) {
                              return create_profiling_executor(program, plan, device, {});
                            },
                            +[](const Program&program, const Plan&plan, backend::Device&device) {
                              return create_lane_executor(program, plan, device, {});
                            }}) {
    const auto device = testing::create_device();
    const auto executor = create(program_, made, *device).value();
    listener_.text.clear();
    executor->set_listener(&listener_);
    for (int run = 0; run < 2; ++run) ASSERT_TRUE(executor->run().ok());
    EXPECT_EQ(listener_.text, "x(1 x) y(1 y) x(2 x) y(2 y) ");
    EXPECT_EQ(listener_.replays, "");
  }
}

TEST_F(OpListenerTest, ACallThatFailsIsNotOver) {
  const Plan made = plan(program_).value();
  const auto device = testing::create_device();
  const auto executor = create_lane_executor(program_, made, *device, {}).value();
  executor->set_listener(&listener_);
  fail_ = true;
  EXPECT_FALSE(executor->run().ok());
  EXPECT_EQ(listener_.text, "x(1 x) y(1 y! ");
}

TEST_F(OpListenerTest, HearsOfRunsFromAGraph) {
  const Plan made = plan(program_).value();
  fakes::FakeDevice gpu(testing::create_device(), true);
  const auto executor = create_lane_executor(program_, made, gpu, {}).value();
  executor->set_listener(&listener_);
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(listener_.replays, "2@2 2@3 ");  // The first went op by op.
}

}  // namespace
}  // namespace telar::engine
