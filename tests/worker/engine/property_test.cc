// Every executor and every allowed order against the sequential twin, on thousands of random programs, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/fakes/device.h"
#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

constexpr int kShards = 8;
constexpr int kRuns = 3;  // A graph replays the third.

// Of all shards; who is in a hurry sets the variable.
int programs() {
  const char* wanted = std::getenv("TELAR_PROPERTY_PROGRAMS");
  return wanted != nullptr ? std::atoi(wanted) : 10000;
}

// An executor with its external memory.
class Trial {
 public:
  Trial(const Program& program, absl::StatusOr<std::unique_ptr<Executor>> executor) : program_(program) {
    EXPECT_TRUE(executor.ok()) << executor.status();
    if (executor.ok()) executor_ = *std::move(executor);
    external_.resize(program.buffers().size());
    for (BufferId id = 0; id < program.buffers().size(); ++id) {
      if (program.buffers()[id].lifetime != Lifetime::kExternal) continue;
      external_[id].resize(program.buffers()[id].bytes);
      executor_->bind(Tensor(id, 0, DType::kU8, {}), external_[id].data());
    }
  }

  // What is left of all buffers that outlive a run, after `runs` runs: one by one, or submitted together.
  std::string bytes_after(int runs, bool together = false) {
    for (int i = 0; i < runs; ++i) {
      const absl::Status status = together ? executor_->submit() : executor_->run();
      EXPECT_TRUE(status.ok()) << status;
    }
    if (together) {
      const absl::Status status = executor_->wait();
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(executor_->good_runs(), static_cast<uint64_t>(runs));
    }
    std::string bytes;
    for (BufferId id = 0; id < program_.buffers().size(); ++id) {
      if (program_.buffers()[id].lifetime == Lifetime::kTransient) continue;
      const std::byte* base = executor_->address(Tensor(id, 0, DType::kU8, {}));
      bytes.append(reinterpret_cast<const char*>(base), program_.buffers()[id].bytes);
    }
    return bytes;
  }

 private:
  const Program& program_;
  std::vector<std::vector<std::byte>> external_;
  std::unique_ptr<Executor> executor_;
};

class PropertyTest : public ::testing::TestWithParam<int> {};

TEST_P(PropertyTest, EveryExecutorEqualsTheSequentialOne) {
  const auto device = testing::create_device();
  fakes::FakeDevice gpu(testing::create_device(), true);
  fakes::FakeDevice here(testing::create_device());  // For the twins, whose streams never have two things to do.
  here.has_threads = false;
  const int first = GetParam() * programs() / kShards;
  const int end = (GetParam() + 1) * programs() / kShards;
  for (int seed = first; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Program program = testing::random_program(static_cast<uint64_t>(seed));
    const absl::StatusOr<Plan> planned = plan(program);  // Which validates.
    ASSERT_TRUE(planned.ok()) << planned.status();
    const std::string expected =
        Trial(program, create_sequential_executor(program, *planned, here, {})).bytes_after(kRuns);
    for (const bool together : {false, true}) {
      EXPECT_EQ(expected,
                Trial(program, create_lane_executor(program, *planned, *device, {})).bytes_after(kRuns, together));
      if (seed % 4 != 0) continue;
      EXPECT_EQ(expected,
                Trial(program, create_lane_executor(program, *planned, gpu, {})).bytes_after(kRuns, together));
    }
    EXPECT_EQ(expected, Trial(program, create_profiling_executor(program, *planned, *device, {})).bytes_after(kRuns));
    for (const uint64_t salt : {1u, 2u}) {
      std::vector<OpId> order = testing::random_topological_order(*planned, static_cast<uint64_t>(seed) * 2 + salt);
      EXPECT_EQ(
          expected,
          Trial(program, create_sequential_executor(program, *planned, here, {}, std::move(order))).bytes_after(kRuns));
    }
    if (seed % 16 == 0) {
      EXPECT_EQ(expected,
                Trial(program, create_sequential_executor(program, *planned, *device, {})).bytes_after(kRuns));
      EXPECT_EQ(expected, Trial(program, create_checking_executor(program, *planned, *device, {})).bytes_after(kRuns));
    }
  }
  EXPECT_GT(gpu.counts.launches, gpu.counts.captures);
}

// The test above proves nothing if the programs have nothing to get wrong.
TEST(RandomProgramTest, HasWaitsAndSharedBytesAndFreedomOfOrder) {
  int waits = 0, shared = 0, reordered = 0, copied_in = 0, copied_out = 0, asked = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Program program = testing::random_program(seed);
    const absl::StatusOr<Plan> planned = plan(program);
    ASSERT_TRUE(planned.ok()) << planned.status();
    if (planned->events > 0) ++waits;
    for (const Op& op : program.ops()) {
      if (op.name.starts_with("copy")) ++(op.lane.kind == LaneKind::kCopyIn ? copied_in : copied_out);
      if (!op.after.empty()) ++asked;
    }
    uint64_t apart = 0;
    for (const Buffer& buffer : program.buffers()) {
      if (buffer.lifetime != Lifetime::kExternal) apart += (buffer.bytes + 255) / 256 * 256;
    }
    if (planned->total_bytes() < apart) ++shared;
    const std::vector<OpId> order = testing::random_topological_order(*planned, seed);
    if (!std::is_sorted(order.begin(), order.end())) ++reordered;
  }
  EXPECT_GT(waits, 250);
  EXPECT_GT(shared, 100);
  EXPECT_GT(reordered, 250);
  EXPECT_GT(copied_in, 50);
  EXPECT_GT(copied_out, 50);
  EXPECT_GT(asked, 250);
}

INSTANTIATE_TEST_SUITE_P(Shards, PropertyTest, ::testing::Range(0, kShards));

}  // namespace
}  // namespace telar::engine
