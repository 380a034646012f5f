// Tensors parked in host memory and runs that are timed, on a GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/backend/module.h"
#include "worker/engine/executor.h"
#include "worker/engine/offload.h"
#include "worker/engine/op_timer.h"
#include "worker/engine/trace.h"

namespace telar::engine {
namespace {

using backend::Kernels;

constexpr int kLayers = 8;
constexpr int64_t kElements = int64_t{1} << 21;  // 8 MiB: a copy takes longer than a launch.
constexpr uint64_t kBytes = kElements * sizeof(float);
constexpr float kSum = kLayers * (kLayers + 1) / 2.0f;

// y[l] = y[l - 1] + 1 goes to the host and comes back for sum += y[l].
class CudaEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = backend::open_device("cuda", {});
    if (absl::IsFailedPrecondition(device.status()) || absl::IsNotFound(device.status())) {
      GTEST_SKIP() << device.status();
    }
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    record();
    plan_ = plan(program_).value();
  }

  Tensor floats(const std::string& name) {
    return program_.transient(name, DType::kF32, {kElements}, MemoryClass::kActivations);
  }

  void record() {
    result_ = program_.persistent("result", DType::kF32, {kElements}, MemoryClass::kIo);
    const Tensor one = floats("one");
    Tensor y = floats("y"), sum = floats("sum");
    program_.record("one", &Kernels::fill, 1.0f, one.out());
    program_.record("y", &Kernels::fill, 0.0f, y.out());
    std::vector<Parked> parked;
    for (int layer = 0; layer < kLayers; ++layer) {
      if (layer >= 2) release(program_, parked[static_cast<size_t>(layer) - 2]);
      const Tensor next = floats("y");
      program_.record("up", &Kernels::add, y.in(), one.in(), next.out());
      parked.push_back(copy_out(program_, "y", std::span(&next, 1)));
      y = next;
    }
    program_.record("sum", &Kernels::fill, 0.0f, sum.out());
    for (size_t layer = kLayers; layer-- > 0;) {
      const Tensor back = copy_in(program_, parked[layer])[0];
      const Tensor next = layer == 0 ? result_ : floats("sum");
      program_.record("down", &Kernels::add, sum.in(), back.in(), next.out());
      sum = next;
    }
  }

  void expect_result(const Executor& executor) {
    std::vector<float> values(kElements);
    ASSERT_TRUE(device_->copy_to_host(executor.address(result_), values.data(), kBytes).ok());
    EXPECT_EQ(std::count(values.begin(), values.end(), kSum), kElements);
    ASSERT_TRUE(device_->copy_to_device(std::vector<float>(kElements).data(), executor.address(result_), kBytes).ok());
  }

  std::unique_ptr<backend::Device> device_;
  Program program_;
  Plan plan_;
  Tensor result_;
};

TEST_F(CudaEngineTest, WhatIsParkedComesBackOpByOpAndFromAGraph) {
  EXPECT_LT(plan_.arena_bytes[static_cast<size_t>(MemoryClass::kActivations)], kLayers * kBytes);
  EXPECT_EQ(plan_.arena_bytes[static_cast<size_t>(MemoryClass::kHost)], kLayers * kBytes);
  const auto sequential = create_sequential_executor(program_, plan_, *device_, {}).value();
  ASSERT_TRUE(sequential->run().ok());
  expect_result(*sequential);
  for (const bool graphs : {false, true}) {
    const auto executor = create_lane_executor(program_, plan_, *device_, {}, {.graphs = graphs}).value();
    for (int run = 0; run < 5; ++run) {
      const absl::Status status = executor->run();
      ASSERT_TRUE(status.ok()) << status;
      expect_result(*executor);
    }
    EXPECT_EQ(executor->graph_state().captured, graphs) << executor->graph_state().why_not;
  }
}

TEST_F(CudaEngineTest, OpsAreTimedOnTheirLanes) {
  const auto executor = create_lane_executor(program_, plan_, *device_, {}).value();
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(executor->run().ok());
  const auto timer = OpTimer::create(plan_, *device_).value();
  ASSERT_TRUE(executor->submit_observed(*timer).ok());
  ASSERT_TRUE(executor->submit().ok());  // From the graph again, behind it.
  ASSERT_TRUE(executor->wait().ok());
  expect_result(*executor);
  const auto times = timer->times();
  ASSERT_TRUE(times.ok()) << times.status();
  constexpr double kResolution = 2e-6;
  for (OpId op = 0; op < plan_.ops.size(); ++op) {
    const OpTime& time = times->ops[op];
    EXPECT_GT(time.stop, time.start) << program_.describe(op);
    EXPECT_LE(time.stop, times->seconds + kResolution) << program_.describe(op);
    for (OpId before : plan_.predecessors[op]) {
      EXPECT_GE(time.start, times->ops[before].stop - kResolution) << program_.describe(op);
    }
  }
  Trace trace = make_trace(program_, plan_, {}, 0);
  set_times(trace, *times);
  const TraceFigures figures = figures_of(trace);
  EXPECT_GT(figures.compute, 0);
  EXPECT_EQ(figures.communication, 0);
  for (size_t lane = 1; lane < figures.lanes.size(); ++lane) {
    EXPECT_GT(figures.lanes[lane].busy, kLayers * 1e-5);  // 8 MiB at no more than 840 GB/s.
  }
}

}  // namespace
}  // namespace telar::engine
