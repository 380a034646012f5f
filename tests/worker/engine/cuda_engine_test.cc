// Tensors parked in host memory, runs that are timed, and a device that fails, on a GPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

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

// A table of positions, read at the places that `starts` gives: of a start far below zero, where no memory is. Among
// other ops, so that there is something to tell apart.
class CudaFailureTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 64, kWidth = 256;
  static constexpr int kBefore = 40, kBehind = 40;

  // What is said of a device that fails in the fourth run of a program, issued op by op or by a graph, with a fifth
  // behind it. For a process of its own: nothing works on the device afterwards.
  static std::string fail(bool graphs) {
    const std::unique_ptr<backend::Device> opened = backend::open_device("cuda", {}).value();
    backend::Device& device = *opened;
    Program program;
    const auto tensor = [&](const std::string& name, DType dtype, backend::Shape shape) {
      return program.persistent(name, dtype, shape, MemoryClass::kIo);
    };
    const Tensor ids = tensor("ids", DType::kI32, {kTokens}), starts = tensor("starts", DType::kI32, {kTokens});
    const Tensor table = tensor("table", DType::kF32, {kTokens, kWidth});
    const Tensor y = tensor("y", DType::kF32, {kTokens, kWidth}), big = tensor("big", DType::kF32, {kElements});
    for (int i = 0; i < kBefore; ++i) program.record("before", &Kernels::fill, 1.0f, big.out());
    program.record("lookup", &Kernels::embedding, ids.in(), backend::VocabSlice{0, kTokens, kTokens}, table.in(),
                   table.in(), starts.in(), kTokens, y.out());
    for (int i = 0; i < kBehind; ++i) program.record("behind", &Kernels::fill, 1.0f, big.out());
    const Plan planned = plan(program).value();
    const auto executor = create_lane_executor(program, planned, device, {}, {.graphs = graphs}).value();
    for (int run = 0; run < 3; ++run) {
      if (const absl::Status status = executor->run(); !status.ok()) return std::string(status.message());
    }
    if (executor->graph_state().captured != graphs) return executor->graph_state().why_not;
    const std::vector<int32_t> wrong(kTokens, -(1 << 30));
    const absl::Status copied = device.copy_to_device(wrong.data(), executor->address(starts), starts.bytes());
    if (!copied.ok()) return std::string(copied.message());
    for (int run = 0; run < 2; ++run) executor->submit().IgnoreError();
    const std::string message(executor->wait().message());
    return message + ", run " + std::to_string(executor->failed_run());
  }
  // Ends the process, with fail()'s answer on stderr.
  [[noreturn]] static void tell(bool graphs) {
    std::cerr << fail(graphs) << std::endl;
    std::_Exit(0);  // A dead context is not taken down in order.
  }
};

TEST_F(CudaFailureTest, AnIllegalAccessIsNamedByItsOp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (absl::StatusOr<std::unique_ptr<backend::Device>> device = backend::open_device("cuda", {}); !device.ok()) {
    GTEST_SKIP() << device.status();
  }
  const std::string code = "CUDA error 700 \\(cudaErrorIllegalAddress";
  EXPECT_EXIT(tell(false), ::testing::ExitedWithCode(0), "at op 'lookup' \\(ids i32 \\[64\\].*" + code + ".*, run 4");
  EXPECT_EXIT(tell(true), ::testing::ExitedWithCode(0),
              "at one of [0-9]+ ops from op 'before' .* to op 'behind' .*" + code + ".*, run 4");
  setenv("TELAR_MARKS", "all", 1);
  EXPECT_EXIT(tell(true), ::testing::ExitedWithCode(0), "at op 'lookup' \\(ids i32 \\[64\\].*" + code + ".*, run 4");
  unsetenv("TELAR_MARKS");
}

}  // namespace
}  // namespace telar::engine
