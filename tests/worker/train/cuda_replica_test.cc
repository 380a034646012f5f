// Whole steps on a GPU: op by op, on lanes and from a graph, to the same bits; and what they leave allocated.
#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/worker/train/tiny.h"
#include "worker/backend/module.h"

namespace telar::train {
namespace {

using testing::state_of;

class CudaReplicaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TELAR_TUNING", "0", 1);  // Choices by timing could differ from device to device object.
    auto device = backend::open_device("cuda", {});
    if (absl::IsFailedPrecondition(device.status()) || absl::IsNotFound(device.status())) {
      GTEST_SKIP() << device.status();
    }
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void TearDown() override {
    unsetenv("TELAR_TUNING");
    unsetenv("TELAR_GRAPHS");
  }

  std::unique_ptr<Replica> create(Replica::Execution execution, bool graphs, v1::Precision precision = v1::FP32) {
    setenv("TELAR_GRAPHS", graphs ? "1" : "0", 1);
    auto replica = Replica::create(plan::run_shape(testing::tiny_spec(precision), parallel::Mesh::of_rank(0, 1, 1, 1)),
                                   *device_, {}, execution);
    EXPECT_TRUE(replica.ok()) << replica.status();
    const absl::Status status = (*replica)->init();
    EXPECT_TRUE(status.ok()) << status;
    return *std::move(replica);
  }

  std::unique_ptr<backend::Device> device_;
};

TEST_F(CudaReplicaTest, LanesAndGraphsGiveTheBitsOfOpByOp) {
  const auto sequential = create(Replica::Execution::kSequential, false);
  const auto want = testing::train(*sequential, 12, 1);
  for (const bool graphs : {false, true}) {
    for (const int depth : {1, 2}) {
      const auto lanes = create(Replica::Execution::kLanes, graphs);
      EXPECT_EQ(testing::train(*lanes, 12, depth), want) << graphs << depth;
      EXPECT_EQ(state_of(*lanes), state_of(*sequential)) << graphs << depth;
      EXPECT_EQ(lanes->graph_state().captured, graphs) << lanes->graph_state().why_not;
    }
  }
}

// A snapshot behind each third step, with two in flight: the state of that step, and no other steps for it.
TEST_F(CudaReplicaTest, SnapshotsHaveTheBitsOfTheirStep) {
  constexpr uint64_t kSteps = 12;
  const auto plain = create(Replica::Execution::kLanes, true);
  std::vector<std::vector<float>> states(kSteps + 1);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(testing::submit(*plain, step).ok());
    ASSERT_TRUE(plain->finish_step().ok());
    states[step] = state_of(*plain);
  }
  for (const bool graphs : {false, true}) {
    const auto replica = create(Replica::Execution::kLanes, graphs);
    ASSERT_TRUE(replica->prepare_snapshots(replica->pieces()).ok());
    const auto expect_state_of = [&](uint64_t step) {
      ASSERT_TRUE(replica->snapshot()->copy().wait().ok());
      std::vector<float> all;
      for (size_t kind = 0; kind < 3; ++kind) {
        for (const parallel::Piece& piece : replica->pieces()) {
          std::vector<float> part(static_cast<size_t>(piece.slice.count));
          ASSERT_TRUE(replica->snapshot()->read(kind, piece, part).ok());
          all.insert(all.end(), part.begin(), part.end());
        }
      }
      EXPECT_TRUE(all == states[step]) << "step " << step << ", graphs " << graphs;
    };
    for (uint64_t step = 1; step <= kSteps; ++step) {
      if (step % 3 == 0 && step > 3) expect_state_of(step - 3);
      ASSERT_TRUE(testing::submit(*replica, step).ok());
      const absl::Status taken = step % 3 == 0 ? replica->take_snapshot() : absl::OkStatus();
      ASSERT_TRUE(taken.ok()) << taken;
      if (replica->in_flight() < 2) continue;
      const auto result = replica->finish_step();
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->held == 0 || (step - 1) % 3 == 1) << step;
    }
    ASSERT_TRUE(replica->finish_step().ok());
    expect_state_of(kSteps);
    EXPECT_TRUE(state_of(*replica) == states[kSteps]);
    EXPECT_EQ(replica->graph_state().captured, graphs) << replica->graph_state().why_not;
  }
}

// With cuDNN's attention, whose backward adds by atomics.
TEST_F(CudaReplicaTest, HalfPrecisionStepsAreCapturedAndClose) {
  for (const v1::Precision precision : {v1::BF16, v1::FP16}) {
    const auto sequential = create(Replica::Execution::kSequential, false, precision);
    const auto want = testing::train(*sequential, 12, 1);
    const auto lanes = create(Replica::Execution::kLanes, true, precision);
    const auto got = testing::train(*lanes, 12, 2);
    EXPECT_TRUE(lanes->graph_state().captured) << lanes->graph_state().why_not;
    ASSERT_EQ(got.size(), want.size());
    for (size_t step = 0; step < want.size(); ++step) EXPECT_NEAR(got[step][0], want[step][0], 0.02 * want[step][0]);
  }
}

TEST_F(CudaReplicaTest, StepsAllocateNothing) {
  const auto replica = create(Replica::Execution::kLanes, true);
  const auto [inputs, targets] = testing::tiny_batch(1);
  const auto half = std::span(inputs).first(testing::kMicro * testing::kSequence);
  for (int batch = 0; batch < 3; ++batch) ASSERT_TRUE(replica->eval_batch(half, half).ok());
  testing::train(*replica, 3, 2);
  ASSERT_TRUE(replica->graph_state().captured) << replica->graph_state().why_not;
  const backend::DeviceOverhead before = device_->overhead().value();
  EXPECT_GT(before.workspaces, 0u);
  EXPECT_GT(before.context, 0u);
  testing::train(*replica, 50, 2);
  for (int batch = 0; batch < 3; ++batch) ASSERT_TRUE(replica->eval_batch(half, half).ok());
  const backend::DeviceOverhead after = device_->overhead().value();
  EXPECT_EQ(after.workspaces, before.workspaces);
  EXPECT_EQ(after.context, before.context);  // On a GPU that nobody else uses.
}

TEST_F(CudaReplicaTest, AGraphSurvivesWhatIsBetweenSteps) {
  const auto replica = create(Replica::Execution::kLanes, true), plain = create(Replica::Execution::kLanes, false);
  const auto [inputs, targets] = testing::tiny_batch(7);
  const auto half = std::span(inputs).first(testing::kMicro * testing::kSequence),
             wanted = std::span(targets).first(testing::kMicro * testing::kSequence);
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(testing::train(*replica, 3, 2), testing::train(*plain, 3, 2));
    EXPECT_EQ(replica->eval_batch(half, wanted).value(), plain->eval_batch(half, wanted).value());
    EXPECT_EQ(replica->next_logits(half.first(4), 3).value(), plain->next_logits(half.first(4), 3).value());
  }
}

}  // namespace
}  // namespace telar::train
