#include "worker/engine/executor.h"

#include <gmock/gmock.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using testing::add;
using testing::comm_lane;
using ::testing::HasSubstr;
using testing::kComputeLane;
using testing::mix;
using testing::persistent;
using testing::read;
using testing::transient;
using testing::update;
using testing::write;

using Create = absl::StatusOr<std::unique_ptr<Executor>> (*)(const Program&, const Plan&, backend::Device&);

absl::StatusOr<std::unique_ptr<Executor>> sequential(const Program& program, const Plan& plan,
                                                     backend::Device& device) {
  return create_sequential_executor(program, plan, device, {});
}
absl::StatusOr<std::unique_ptr<Executor>> lanes(const Program& program, const Plan& plan, backend::Device& device) {
  return create_lane_executor(program, plan, device, {});
}
absl::StatusOr<std::unique_ptr<Executor>> profiling(const Program& program, const Plan& plan, backend::Device& device) {
  return create_profiling_executor(program, plan, device, {});
}

// x[0] += 1 on `lane`, as a u8.
OpId increment(Program& program, const std::string& name, Lane lane, const Tensor& x) {
  return add(program, name, lane, {update(x)}, [x](const RunContext& context, backend::Stream&) {
    std::byte& value = *context.addresses->at(x);
    value = static_cast<std::byte>(std::to_integer<int>(value) + 1);
    return absl::OkStatus();
  });
}

class ExecutorTest : public ::testing::TestWithParam<Create> {
 protected:
  std::unique_ptr<backend::Device> device_ = testing::create_device();
};

TEST_P(ExecutorTest, PersistentBuffersStartAtZeroAndKeepTheirContents) {
  Program program;
  const Tensor x = persistent(program, "x", 1);
  increment(program, "compute", kComputeLane, x);
  increment(program, "comm", comm_lane(0), x);
  const Plan planned = plan(program).value();
  const auto executor = GetParam()(program, planned, *device_).value();
  EXPECT_EQ(std::to_integer<int>(*executor->address(x)), 0);
  for (int run = 1; run <= 50; ++run) {
    ASSERT_TRUE(executor->run().ok());
    EXPECT_EQ(std::to_integer<int>(*executor->address(x)), 2 * run);
  }
}

TEST_P(ExecutorTest, ExternalBuffersAreWhereTheyWereBound) {
  Program program;
  const Tensor x = testing::external(program, "x", 1);
  increment(program, "op", kComputeLane, x);
  const Plan planned = plan(program).value();
  const auto executor = GetParam()(program, planned, *device_).value();
  const absl::Status unbound = executor->run();
  EXPECT_EQ(unbound.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unbound.message()), HasSubstr("'x'"));
  std::byte first{5}, second{7};
  executor->bind(x, &first);
  ASSERT_TRUE(executor->run().ok());
  executor->bind(x, &second);
  ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(std::to_integer<int>(first), 6);
  EXPECT_EQ(std::to_integer<int>(second), 8);
}

TEST_P(ExecutorTest, AnErrorNamesOpAndLaneAndEndsTheRun) {
  Program program;
  const Tensor x = persistent(program, "x", 1);
  const Tensor after = persistent(program, "after", 1);
  const auto fail = [](const RunContext&, backend::Stream&) { return absl::DataLossError("peer is gone"); };
  increment(program, "before", kComputeLane, x);
  add(program, "layer3/reduce", comm_lane(1), {update(x)}, fail);
  add(program, "dependent", kComputeLane, {update(x), update(after)}, [after](const RunContext& context, auto&) {
    *context.addresses->at(after) = std::byte{1};
    return absl::OkStatus();
  });
  increment(program, "and back", comm_lane(1), after);
  const Plan planned = plan(program).value();
  const auto executor = GetParam()(program, planned, *device_).value();
  const absl::Status status = executor->run();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(std::string(status.message()), "op 'layer3/reduce' on lane comm1: peer is gone");
  EXPECT_EQ(std::to_integer<int>(*executor->address(x)), 1);
  EXPECT_EQ(std::to_integer<int>(*executor->address(after)), 0);
  EXPECT_FALSE(executor->run().ok());
  EXPECT_EQ(std::to_integer<int>(*executor->address(after)), 0);
}

TEST_P(ExecutorTest, ANonExistingCommunicatorIsAnError) {
  Program program;
  const Tensor x = program.persistent("x", DType::kF32, {4}, MemoryClass::kGrads);
  program.record("reduce", 2, &backend::Communicator::all_reduce, backend::ReduceOp::kSum, x.inout());
  const Plan planned = plan(program).value();
  const auto executor = GetParam()(program, planned, *device_).value();
  const absl::Status status = executor->run();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("op 'reduce' (x f32 [4]) on lane comm2: needs communicator 2"));
}

TEST_P(ExecutorTest, AnOpWithNothingToRunIsRefused) {
  Program program;
  program.add_op({.name = "empty"});
  const Plan planned = plan(program).value();
  EXPECT_EQ(GetParam()(program, planned, *device_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ExecutorTest, TooLargeAnArenaIsNamed) {
  Program program;
  const Tensor x = program.persistent("x", DType::kU8, {int64_t{1} << 55}, MemoryClass::kGrads);
  add(program, "op", kComputeLane, {write(x)}, [](const RunContext&, backend::Stream&) { return absl::OkStatus(); });
  const Plan planned = plan(program).value();
  const absl::Status status = GetParam()(program, planned, *device_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("arena grads"));
}

std::string kind_name(const ::testing::TestParamInfo<Create>& parameter) {
  return parameter.param == &sequential ? "Sequential" : parameter.param == &lanes ? "Lanes" : "Profiling";
}
INSTANTIATE_TEST_SUITE_P(Kinds, ExecutorTest, ::testing::Values(&sequential, &lanes, &profiling), kind_name);

TEST(ProfilingExecutorTest, TimesEachOpOfTheLastRun) {
  Program program;
  const Tensor x = persistent(program, "x", 1);
  const auto wait = [](std::chrono::milliseconds time) {
    return [time](const RunContext&, backend::Stream&) {
      const auto end = std::chrono::steady_clock::now() + time;
      while (std::chrono::steady_clock::now() < end) {
      }
      return absl::OkStatus();
    };
  };
  add(program, "short", kComputeLane, {update(x)}, wait(std::chrono::milliseconds(2)));
  add(program, "long", comm_lane(0), {update(x)}, wait(std::chrono::milliseconds(20)));
  const Plan planned = plan(program).value();
  const auto device = testing::create_device();
  const auto executor = create_profiling_executor(program, planned, *device, {}).value();
  for (int run = 0; run < 2; ++run) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(executor->run().ok());
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
    const std::vector<double> seconds = executor->op_seconds().value();
    ASSERT_EQ(seconds.size(), 2u);
    EXPECT_GE(seconds[0], 0.002);
    EXPECT_GE(seconds[1], 0.020);
    EXPECT_LE(seconds[0] + seconds[1], all.count());
  }
  const auto lanes_only = create_lane_executor(program, planned, *device, {}).value();
  EXPECT_EQ(lanes_only->op_seconds().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SequentialExecutorTest, RefusesAnOrderThatIsNone) {
  const auto device = testing::create_device();
  Program program;
  const Tensor x = persistent(program, "x", 1);
  increment(program, "first", kComputeLane, x);
  increment(program, "second", kComputeLane, x);
  const Plan planned = plan(program).value();
  const auto message = [&](std::vector<OpId> order) {
    const absl::Status status = create_sequential_executor(program, planned, *device, {}, std::move(order)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({1, 0}), HasSubstr("op 'second' comes before 'first'"));
  EXPECT_THAT(message({0, 0}), HasSubstr("twice"));
  EXPECT_THAT(message({0}), HasSubstr("1 of 2"));
  EXPECT_THAT(message({0, 2}), HasSubstr("unknown"));
}

// Two ops without an edge between them, each of which needs the other to be running.
TEST(LaneExecutorTest, LanesRunBesideEachOther) {
  const auto device = testing::create_device();
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  const auto meet = [&](const RunContext&, backend::Stream&) {
    std::unique_lock lock(mutex);
    ++arrived;
    changed.notify_all();
    changed.wait(lock, [&] { return arrived == 2; });
    return absl::OkStatus();
  };
  Program program;
  const Tensor x = persistent(program, "x", 1);
  const Tensor y = persistent(program, "y", 1);
  add(program, "compute", kComputeLane, {write(x)}, meet);
  add(program, "comm", comm_lane(0), {write(y)}, meet);
  const Plan planned = plan(program).value();
  const auto executor = create_lane_executor(program, planned, *device, {}).value();
  EXPECT_TRUE(executor->run().ok());
  EXPECT_EQ(arrived, 2);
}

// Any op of a program that crosses lanes often may fail: the run always ends, and the error is that op's.
TEST(LaneExecutorTest, EndsWhicheverOpFails) {
  const auto device = testing::create_device();
  constexpr OpId kOps = 60;
  for (OpId failing = 0; failing < kOps; ++failing) {
    Program program;
    std::vector<Tensor> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(persistent(program, "x", 8));
    for (OpId op = 0; op < kOps; ++op) {
      const Lane lane = op % 3 == 0 ? kComputeLane : comm_lane(op % 3);
      const std::string name = "op" + std::to_string(op);
      const std::vector<Access> accesses = {update(tensors[op % 3]), read(tensors[(op / 2) % 3])};
      if (op == failing) {
        add(program, name, lane, accesses,
            [](const RunContext&, backend::Stream&) { return absl::AbortedError("as asked"); });
      } else {
        mix(program, name, lane, accesses);
      }
    }
    const Plan planned = plan(program).value();
    const auto executor = create_lane_executor(program, planned, *device, {}).value();
    const absl::Status status = executor->run();
    EXPECT_THAT(std::string(status.message()), HasSubstr("op 'op" + std::to_string(failing) + "' on lane"));
  }
}

TEST(LaneExecutorTest, AThrowingOpIsAnError) {
  const auto device = testing::create_device();
  Program program;
  const Tensor x = persistent(program, "x", 1);
  add(program, "thrower", kComputeLane, {write(x)},
      [](const RunContext&, backend::Stream&) -> absl::Status { throw std::runtime_error("from a vendor"); });
  increment(program, "waiting", comm_lane(0), x);
  const Plan planned = plan(program).value();
  const auto executor = create_lane_executor(program, planned, *device, {}).value();
  EXPECT_THAT(std::string(executor->run().message()), HasSubstr("from a vendor"));
}

}  // namespace
}  // namespace telar::engine
