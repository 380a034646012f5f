// Streams, copies and graphs of a CUDA device.
#include <gmock/gmock.h>

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "worker/backend/cuda/cuda.h"
#include "worker/backend/device.h"

namespace telar::backend::cuda {
namespace {

using Work = std::function<absl::Status(Stream&)>;
constexpr int64_t kElements = 1 << 20;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU";
    }
    auto device = open_device({});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    memory_ = device_->allocate(bytes()).value();
    sum_ = device_->allocate(bytes()).value();
    host_ = device_->allocate_pinned(bytes()).value();
    forked_ = device_->create_event().value();
    joined_ = device_->create_event().value();
    a_ = device_->create_stream("a", true).value();
    b_ = device_->create_stream("b", false).value();
  }
  static size_t bytes() { return kElements * sizeof(float); }
  View view() const {
    View view{.buffer = 0, .dtype = DType::kF32, .shape = {kElements}};
    view.data = memory_->data();
    return view;
  }
  Work fill(float value) {
    return [this, value](Stream& stream) { return device_->kernels().fill(stream, value, Out(view())); };
  }
  // memory += memory, so that a second execution shows. A kernel and a copy.
  Work twice() {
    return [this](Stream& stream) {
      View sum = view();
      sum.data = sum_->data();
      absl::Status status = device_->kernels().add(stream, In(view()), In(view()), Out(sum));
      stream.copy(memory_->data(), sum_->data(), bytes());
      return status;
    };
  }
  // a, then b, then a again.
  absl::Status issue(const Work& on_a, const Work& on_b) {
    a_->submit(on_a);
    a_->record(*forked_);
    b_->wait(*forked_);
    b_->submit(on_b);
    b_->record(*joined_);
    a_->wait(*joined_);
    return absl::OkStatus();
  }
  float first() {
    float value = 0;
    EXPECT_TRUE(device_->copy_to_host(memory_->data(), &value, sizeof(value)).ok());
    return value;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Memory> memory_, sum_, host_;
  std::unique_ptr<Event> forked_, joined_;
  std::unique_ptr<Graph> graph_;
  std::unique_ptr<Stream> a_, b_;
};

TEST_F(CudaDeviceTest, CopiesBothWaysInTheStreamsOrder) {
  auto* values = reinterpret_cast<float*>(host_->data());
  for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i % 1000);
  const std::unique_ptr<Memory> back = device_->allocate_pinned(bytes()).value();
  const std::unique_ptr<Memory> other = device_->allocate(bytes()).value();
  const Work add = twice();
  a_->copy(memory_->data(), host_->data(), bytes());
  a_->submit(add);
  a_->copy(other->data(), memory_->data(), bytes());
  a_->copy(back->data(), other->data(), bytes());
  a_->copy(nullptr, nullptr, 0);
  a_->record(*forked_);
  ASSERT_TRUE(forked_->synchronize().ok());
  const auto* got = reinterpret_cast<const float*>(back->data());
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(got[i], 2 * values[i]) << i;
}

TEST_F(CudaDeviceTest, AnEventWithoutARecordIsNoWait) { EXPECT_TRUE(forked_->synchronize().ok()); }

TEST_F(CudaDeviceTest, AGraphRunsWhatWasCapturedOnBothStreamsAndOnlyWhenLaunched) {
  const Work one = fill(1), add = twice();
  ASSERT_TRUE(issue(one, add).ok());  // Loads the kernels.
  ASSERT_TRUE(a_->synchronize().ok());
  EXPECT_EQ(first(), 2);
  auto captured = device_->capture(*a_, [&] { return issue(add, add); });
  ASSERT_TRUE(captured.ok()) << captured.status();
  graph_ = *std::move(captured);
  EXPECT_EQ(graph_->nodes(), 4u);
  ASSERT_TRUE(a_->synchronize().ok());
  EXPECT_EQ(first(), 2);
  for (int launch = 0; launch < 3; ++launch) graph_->launch(*a_);
  ASSERT_TRUE(a_->synchronize().ok());
  EXPECT_EQ(first(), 2 * 64);
  ASSERT_TRUE(issue(one, add).ok());  // Streams and events are as before.
  ASSERT_TRUE(b_->synchronize().ok());
  ASSERT_TRUE(a_->synchronize().ok());
  EXPECT_EQ(first(), 2);
}

// An op that fails, one that allocates, one that waits: no graph, and the streams go on.
TEST_F(CudaDeviceTest, ACaptureThatFailsLeavesTheStreamsAsTheyWere) {
  const Work one = fill(1), add = twice();
  const Work fails = [](Stream&) { return absl::DataLossError("as asked"); };
  const Work allocates = [](Stream&) {
    void* data = nullptr;
    const absl::Status status = to_status(cudaMalloc(&data, 4096), "cudaMalloc");
    cudaFree(data);
    return status;
  };
  const Work waits = [](Stream& stream) { return stream.synchronize(); };
  for (const Work* bad : {&fails, &allocates, &waits}) {
    const auto captured = device_->capture(*a_, [&] { return issue(add, *bad); });
    ASSERT_FALSE(captured.ok());
    EXPECT_EQ(captured.status() == absl::DataLossError("as asked"), bad == &fails) << captured.status();
    ASSERT_TRUE(issue(one, add).ok());
    ASSERT_TRUE(b_->synchronize().ok());
    ASSERT_TRUE(a_->synchronize().ok());
    EXPECT_EQ(first(), 2);
  }
}

TEST_F(CudaDeviceTest, MarksAreLeftInTheStreamsOrderAndByGraphs) {
  constexpr uint32_t kSlots = 300;  // More than the driver takes at once.
  const auto made = device_->create_marks(kSlots);
  ASSERT_TRUE(made.ok()) << made.status();
  Marks& marks = **made;
  for (uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_EQ(marks.read(slot), 0u);
  std::vector<Marks::Mark> all;
  for (uint32_t slot = 0; slot < kSlots; ++slot) all.push_back({slot, slot + 1});
  const Work one = fill(1), add = twice();
  ASSERT_TRUE(issue(one, add).ok());
  marks.leave(*a_, all);
  ASSERT_TRUE(a_->synchronize().ok());
  for (uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_EQ(marks.read(slot), slot + 1);
  auto captured = device_->capture(*a_, [&] {
    a_->submit(add);
    const Marks::Mark mark{1, 1000};
    marks.leave(*a_, std::span(&mark, 1));
    a_->submit(add);
    return absl::OkStatus();
  });
  ASSERT_TRUE(captured.ok()) << captured.status();
  graph_ = *std::move(captured);
  EXPECT_EQ(graph_->nodes(), 5u);
  EXPECT_EQ(marks.read(1), 2u);
  graph_->launch(*a_);
  ASSERT_TRUE(a_->synchronize().ok());
  EXPECT_EQ(marks.read(1), 1000u);
}

TEST_F(CudaDeviceTest, WhatKernelsKeepIsCounted) {
  EXPECT_EQ(device_->overhead().value().workspaces, 0u);
  const std::unique_ptr<Memory> sum = device_->allocate(sizeof(float)).value();
  View total{.buffer = 0, .dtype = DType::kF32, .shape = {1}};
  total.data = sum->data();
  const Work square = [&](Stream& stream) { return device_->kernels().sum_squares(stream, In(view()), InOut(total)); };
  a_->submit(square);
  ASSERT_TRUE(a_->synchronize().ok());
  const DeviceOverhead overhead = device_->overhead().value();
  EXPECT_GT(overhead.workspaces, 0u);
  EXPECT_LE(overhead.workspaces, uint64_t{32} << 20);
  EXPECT_GT(overhead.context, uint64_t{1} << 20);
}

}  // namespace
}  // namespace telar::backend::cuda
