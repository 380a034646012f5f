// Steps in flight: their results, what they cost the host, and how they fail.
#include "worker/train/replica.h"

#include <gmock/gmock.h>

#include <map>

#include "tests/fakes/device.h"
#include "tests/worker/forecast/specs.h"
#include "tests/worker/train/tiny.h"
#include "worker/backend/cpu/cpu.h"
#include "worker/forecast/forecast.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

using testing::state_of;
using testing::submit;
using testing::tiny_batch;

// Of two replicas that do the same; fails at one call.
class FailingCommunicator final : public backend::Communicator {
 public:
  int fail_at = 0;  // The call, from 1; 0: none.
  int calls = 0;

  int rank() const override { return 0; }
  int size() const override { return 2; }
  absl::Status all_reduce(backend::Stream&, backend::ReduceOp, backend::InOut) override {
    return ++calls == fail_at ? absl::UnavailableError("peer is gone") : absl::OkStatus();
  }
  absl::Status all_gather(backend::Stream&, backend::In, backend::Out) override { return none(); }
  absl::Status reduce_scatter(backend::Stream&, backend::ReduceOp, backend::In, backend::Out) override {
    return none();
  }
  absl::Status broadcast(backend::Stream&, int, backend::InOut) override { return none(); }
  absl::Status send(backend::Stream&, int, backend::In) override { return none(); }
  absl::Status recv(backend::Stream&, int, backend::Out) override { return none(); }
  absl::Status exchange(backend::Stream&, int, backend::In, int, backend::Out) override { return none(); }
  absl::Status barrier() override { return none(); }

 private:
  static absl::Status none() { return absl::UnimplementedError("not here"); }
};

class ReplicaTest : public ::testing::Test {
 protected:
  static std::unique_ptr<backend::Device> cpu_device() {
    return backend::cpu::create_device({}, backend::cpu::create_kernels(), nullptr);
  }
  static std::unique_ptr<Replica> create(backend::Device& device,
                                         Replica::Execution execution = Replica::Execution::kLanes,
                                         std::vector<backend::Communicator*> groups = {}) {
    const uint32_t replicas = groups.empty() ? 1 : 2;
    plan::RunShape shape = plan::run_shape(testing::tiny_spec(v1::FP32, replicas),
                                           parallel::Mesh::of_rank(0, static_cast<int>(replicas), 1, 1));
    auto replica = Replica::create(std::move(shape), device, std::move(groups), execution);
    EXPECT_TRUE(replica.ok()) << replica.status();
    const absl::Status status = (*replica)->init();
    EXPECT_TRUE(status.ok()) << status;
    return *std::move(replica);
  }

  fakes::FakeDevice cpu_{cpu_device()};
  fakes::FakeDevice gpu_{cpu_device(), true};
};

// What run.cc reports at a start is what `telar plan` has said.
TEST_F(ReplicaTest, ItsMemoryIsTheForecasts) {
  const auto replica = create(cpu_);
  const auto told = forecast::forecast(testing::tiny_spec(), forecast::testing::cluster_of(1), {.may_shorten = false});
  ASSERT_TRUE(told.ok()) << told.status();
  std::map<std::string, uint64_t> bytes;
  for (const v1::MemoryForecast& one : told->ranks(0).memory()) bytes[one.memory_class()] = one.bytes();
  const auto& arenas = replica->train_plan().arena_bytes;
  for (int i = 0; i < engine::kMemoryClasses; ++i) {
    const auto memory_class = static_cast<engine::MemoryClass>(i);
    const uint64_t beside = memory_class == engine::MemoryClass::kIo ? replica->staging_bytes() : 0;
    EXPECT_EQ(bytes[std::string(engine::name_of(memory_class))], arenas[static_cast<size_t>(i)] + beside)
        << engine::name_of(memory_class);
  }
}

TEST_F(ReplicaTest, StepsInFlightAndGraphsGiveTheBitsOfOneAfterAnother) {
  const auto sequential = create(cpu_, Replica::Execution::kSequential);
  const auto want = testing::train(*sequential, 12, 1);
  for (fakes::FakeDevice* device : {&cpu_, &gpu_}) {
    for (const int depth : {1, 2}) {
      const auto lanes = create(*device);
      EXPECT_EQ(testing::train(*lanes, 12, depth), want) << depth;
      EXPECT_EQ(state_of(*lanes), state_of(*sequential)) << depth;
      EXPECT_EQ(lanes->graph_state().captured, device == &gpu_);
    }
  }
}

TEST_F(ReplicaTest, AStepAllocatesNothingAndTheHostWaitsOnce) {
  for (fakes::FakeDevice* device : {&cpu_, &gpu_}) {
    const auto replica = create(*device);
    testing::train(*replica, 2, 1);  // The first warms up, the second is captured where it can be.
    ASSERT_TRUE(submit(*replica, 3).ok());
    const int allocations = device->counts.allocations, synchronizations = device->counts.synchronizations;
    for (uint64_t step = 4; step < 14; ++step) {
      ASSERT_TRUE(submit(*replica, step).ok());
      ASSERT_TRUE(replica->finish_step().ok());
    }
    EXPECT_EQ(device->counts.allocations, allocations);
    EXPECT_EQ(device->counts.synchronizations, synchronizations + 10);
    ASSERT_TRUE(replica->finish_step().ok());
  }
}

TEST_F(ReplicaTest, AnErrorNamesTheStepTheOpAndItsShapes) {
  FailingCommunicator group, gradients;  // The world's, and the replicas': each has a lane of its own.
  {
    const auto replica = create(cpu_, Replica::Execution::kLanes, {&group, &gradients});
    testing::train(*replica, 1, 1);
  }
  const int calls_a_step = group.calls;
  ASSERT_GT(calls_a_step, 3);
  ASSERT_GT(gradients.calls, 0);
  for (const auto execution : {Replica::Execution::kLanes, Replica::Execution::kSequential}) {
    for (const uint64_t failing : {3, 4}) {
      group.calls = 0;
      group.fail_at = calls_a_step * static_cast<int>(failing - 1) + 1;
      const auto replica = create(cpu_, execution, {&group, &gradients});
      testing::train(*replica, 2, 1);
      // Both are in flight when the one fails; a sequential replica fails at once.
      absl::Status status = submit(*replica, 3);
      if (status.ok()) status = submit(*replica, 4);
      if (status.ok() && failing == 4) {
        const auto third = replica->finish_step();
        EXPECT_TRUE(third.ok()) << third.status();
      }
      if (status.ok()) status = replica->finish_step().status();
      EXPECT_EQ(std::string(status.message()),
                "step " + std::to_string(failing) + ": op 'valid.reduce' (valid f32 [1]) on lane comm0: peer is gone");
      EXPECT_EQ(class_of(status), v1::COMMUNICATION);
    }
  }
}

// An error that the device finds by itself is told of when a step is waited for: by the marks of steps, of the right
// one.
TEST_F(ReplicaTest, AnErrorOfTheDeviceIsOfTheStepThatItsMarksTell) {
  constexpr uint64_t kFirst = 101;
  for (const uint64_t failing : {1, 2, 5, 6}) {
    fakes::FakeDevice device(cpu_device(), true);
    device.has_marks = true;
    const auto replica = create(device);
    device.behind_mark = [&](const backend::Marks::Mark& mark) {
      if (mark.slot == 0 && mark.value / 2 == failing) device.break_down();  // The run has begun.
    };
    absl::Status status;
    for (uint64_t step = kFirst; status.ok(); ++step) {
      ASSERT_LT(step, kFirst + 10);
      status = submit(*replica, step);
      if (status.ok() && replica->in_flight() == 2) status = replica->finish_step().status();
    }
    EXPECT_THAT(std::string(status.message()),
                ::testing::MatchesRegex("step " + std::to_string(kFirst + failing - 1) +
                                        ": at .*op '.*' .* on lane compute: CUDA error 700"));
    EXPECT_EQ(class_of(status), v1::INTERNAL);
  }
}

TEST_F(ReplicaTest, NothingElseRunsBesideAStep) {
  const auto replica = create(cpu_);
  ASSERT_TRUE(submit(*replica, 1).ok());
  ASSERT_TRUE(submit(*replica, 2).ok());
  EXPECT_EQ(submit(*replica, 3).code(), absl::StatusCode::kFailedPrecondition);
  const auto [inputs, targets] = tiny_batch(1);
  const auto half = std::span(inputs).first(testing::kMicro * testing::kSequence);
  EXPECT_EQ(replica->eval_batch(half, half).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(replica->next_logits(half.first(4), 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(replica->masters_changed().code(), absl::StatusCode::kFailedPrecondition);
  const parallel::Piece piece = replica->pieces().front();
  std::vector<float> part(static_cast<size_t>(piece.slice.count));
  EXPECT_EQ(replica->write(Replica::Kind::kMaster, piece, part).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(replica->read(Replica::Kind::kMaster, piece, part).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(replica->finish_step().ok());
  ASSERT_TRUE(replica->finish_step().ok());
  EXPECT_EQ(replica->finish_step().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(replica->eval_batch(half, half).ok());
  EXPECT_TRUE(replica->read(Replica::Kind::kMaster, piece, part).ok());
  part.pop_back();
  EXPECT_EQ(replica->read(Replica::Kind::kMaster, piece, part).code(), absl::StatusCode::kInternal);
}

TEST_F(ReplicaTest, AStepThatNobodyFinishesEndsWithTheReplica) {
  const auto replica = create(cpu_);
  ASSERT_TRUE(submit(*replica, 1).ok());
  ASSERT_TRUE(submit(*replica, 2).ok());
}

TEST_F(ReplicaTest, AskingToStopComesBackWithTheStep) {
  const auto replica = create(cpu_);
  ASSERT_TRUE(submit(*replica, 1, /*stop=*/true).ok());
  ASSERT_TRUE(submit(*replica, 2).ok());
  EXPECT_TRUE(replica->finish_step().value().stop);
  EXPECT_FALSE(replica->finish_step().value().stop);
}

}  // namespace
}  // namespace telar::train
