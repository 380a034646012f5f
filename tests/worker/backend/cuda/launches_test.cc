// What a GPU device says of its streams and kernels: times, and what a call launches.
#include <cuda_runtime_api.h>

#include <vector>

#include "gmock/gmock.h"
#include "worker/backend/cuda/cuda.h"

namespace telar::backend::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class LaunchesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    device_ = open_device({}).value();
    stream_ = device_->create_stream("test", true).value();
    memory_ = device_->allocate(kElements * sizeof(float)).value();
    view_.buffer = 0;
    view_.shape = Shape{kElements};
    view_.data = memory_->data();
  }
  float first() {
    float value = 0;
    EXPECT_EQ(device_->copy_to_host(view_.data, &value, sizeof(value)), absl::OkStatus());
    return value;
  }

  static constexpr int64_t kElements = int64_t{1} << 24;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Stream> stream_;
  View view_;
  const std::function<absl::Status(Stream&)> fill_ = [this](Stream& stream) {
    return device_->kernels().fill(stream, 2.0f, Out(view_));
  };
};

TEST_F(LaunchesTest, AKernelIsDescribedAndNotRun) {
  const auto launches = device_->describe(*stream_, fill_);
  ASSERT_TRUE(launches.ok()) << launches.status();
  ASSERT_THAT(*launches, SizeIs(1));
  const KernelLaunch& launch = launches->front();
  EXPECT_THAT(launch.name, HasSubstr("kernel"));
  EXPECT_GT(launch.blocks, 0u);
  EXPECT_GE(launch.threads, 32);
  EXPECT_GT(launch.registers, 0);
  EXPECT_EQ(launch.local_bytes, 0u);
  EXPECT_GT(launch.resident_warps, 0);
  EXPECT_LE(launch.resident_warps, launch.max_warps);
  EXPECT_NE(launch.limiter, "");
  EXPECT_EQ(first(), 0.0f);
  // The stream goes on as before.
  stream_->submit(fill_);
  ASSERT_EQ(stream_->synchronize(), absl::OkStatus());
  EXPECT_EQ(first(), 2.0f);
}

TEST_F(LaunchesTest, AnErrorOfTheWorkIsTheAnswer) {
  const auto launches = device_->describe(*stream_, [](Stream&) { return absl::DataLossError("mine"); });
  EXPECT_EQ(launches.status(), absl::DataLossError("mine"));
  stream_->submit(fill_);
  EXPECT_EQ(stream_->synchronize(), absl::OkStatus());
}

TEST_F(LaunchesTest, TimedEventsMeasureWhatIsBetweenThem) {
  const auto start = device_->create_timed_event().value(), middle = device_->create_timed_event().value(),
             stop = device_->create_timed_event().value();
  stream_->submit(fill_);
  stream_->record(*start);
  stream_->submit(fill_);
  stream_->record(*middle);
  for (int i = 0; i < 20; ++i) stream_->submit(fill_);
  stream_->record(*stop);
  const double one = device_->seconds_between(*start, *middle).value();
  const double twenty = device_->seconds_between(*middle, *stop).value();
  EXPECT_GT(one, kElements * sizeof(float) / 20e12);  // No memory writes faster.
  EXPECT_GT(twenty, 4 * one);
  EXPECT_NEAR(device_->seconds_between(*start, *stop).value(), one + twenty, 1e-5);
}

// Memsets would cut the graph of an FP8 step into hundreds of pieces, and the host would stand in its launch.
TEST_F(LaunchesTest, WhatFindsTheGreatestIsCapturedAsKernels) {
  View greatest = view_;
  greatest.shape = Shape{1};
  const auto other = device_->allocate(view_.bytes()).value();
  View y = view_;
  y.data = other->data();
  ASSERT_EQ(cudaStreamBeginCapture(handle_of(*stream_), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  absl::Status status = device_->kernels().amax(*stream_, In(y), In(), Out(greatest));
  status.Update(device_->kernels().gelu(*stream_, In(y), Out(y), Out(greatest)));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(handle_of(*stream_), &graph), cudaSuccess);
  ASSERT_EQ(status, absl::OkStatus());
  size_t count = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
  std::vector<cudaGraphNode_t> nodes(count);
  ASSERT_EQ(cudaGraphGetNodes(graph, nodes.data(), &count), cudaSuccess);
  EXPECT_THAT(nodes, SizeIs(4));  // Both clear what they find the greatest in.
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    ASSERT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
    EXPECT_EQ(type, cudaGraphNodeTypeKernel);
  }
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace telar::backend::cuda
