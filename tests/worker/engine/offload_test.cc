#include "worker/engine/offload.h"

#include <gmock/gmock.h>

#include "tests/fakes/device.h"
#include "tests/worker/engine/testing.h"
#include "worker/engine/graph.h"
#include "worker/engine/validate.h"

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

constexpr int kLayers = 12;
constexpr size_t kDistance = 2;
constexpr int64_t kKept = 4096;
constexpr auto kActivations = static_cast<size_t>(MemoryClass::kActivations);
constexpr auto kHost = static_cast<size_t>(MemoryClass::kHost);

// Each layer keeps two tensors for its backward. `waits`: with the waits that make room.
Program training_step(bool offloaded, bool waits = true) {
  Program program;
  const Tensor x = persistent(program, "x", 64);
  const Tensor grad = persistent(program, "grad", 64, MemoryClass::kGrads);
  std::vector<std::vector<Tensor>> kept;
  std::vector<Parked> parked;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    if (offloaded && waits && layer >= kDistance) release(program, parked[layer - kDistance]);
    kept.push_back({transient(program, "a", kKept), transient(program, "b", kKept)});
    mix(program, "forward", kComputeLane, {update(x), write(kept[layer][0]), write(kept[layer][1])});
    if (offloaded) parked.push_back(copy_out(program, "layer", kept[layer]));
  }
  for (size_t layer = kLayers; layer-- > 0;) {
    if (offloaded && !waits) kept[layer] = copy_in(program, parked[layer]);
    if (offloaded && waits) {
      if (layer + 1 == kLayers) kept[layer] = copy_in(program, parked[layer]);
      if (layer > 0) kept[layer - 1] = copy_in(program, parked[layer - 1]);  // One ahead.
    }
    mix(program, "backward", kComputeLane, {read(kept[layer][0]), read(kept[layer][1]), update(grad)});
  }
  return program;
}

// x and grad after three runs.
std::string result(const Program& program, Executor& executor) {
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(executor.run().ok());
  std::string bytes;
  for (BufferId id = 0; id < 2; ++id) {
    const Tensor tensor(id, 0, DType::kU8, {64});
    bytes.append(reinterpret_cast<const char*>(executor.address(tensor)), program.buffers()[id].bytes);
  }
  return bytes;
}

TEST(OffloadTest, TheDeviceHoldsAFewLayersAndTheHostAll) {
  const Program plain = training_step(false), offloaded = training_step(true);
  const Plan all = plan(plain).value(), few = plan(offloaded).value();
  EXPECT_EQ(all.arena_bytes[kActivations], kLayers * 2u * kKept);
  EXPECT_EQ(all.arena_bytes[kHost], 0u);
  // The layer at work and the one whose copies may still be under way.
  EXPECT_EQ(few.arena_bytes[kActivations], kDistance * 2u * kKept);
  EXPECT_EQ(few.arena_bytes[kHost], kLayers * 2u * kKept);
  EXPECT_EQ(few.total_bytes(), few.arena_bytes[kActivations] + all.total_bytes() - all.arena_bytes[kActivations]);
}

TEST(OffloadTest, WithoutReleaseNothingIsSaved) {
  EXPECT_GE(plan(training_step(true, false)).value().arena_bytes[kActivations], kLayers * 2u * kKept);
}

TEST(OffloadTest, AllExecutorsAndOrdersAgree) {
  const Program program = training_step(true);
  const Plan planned = plan(program).value();
  const auto device = testing::create_device();
  fakes::FakeDevice gpu(testing::create_device(), true);
  const auto oracle = create_sequential_executor(program, planned, *device, {}).value();
  const std::string expected = result(program, *oracle);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto order = testing::random_topological_order(planned, seed);
    EXPECT_EQ(result(program, *create_sequential_executor(program, planned, *device, {}, order).value()), expected);
    EXPECT_EQ(result(program, *create_lane_executor(program, planned, *device, {}).value()), expected);
  }
  EXPECT_EQ(result(program, *create_lane_executor(program, planned, gpu, {}).value()), expected);
  EXPECT_EQ(result(program, *create_profiling_executor(program, planned, *device, {}).value()), expected);
  EXPECT_EQ(result(program, *create_checking_executor(program, planned, *device, {}).value()), expected);
}

TEST(OffloadTest, WhatComesBackIsWhatWentOut) {
  Program program;
  const Tensor x = persistent(program, "x", 4), y = persistent(program, "y", 4);
  const Tensor kept = program.transient("kept", DType::kU8, {4}, MemoryClass::kActivations);
  add(program, "out", kComputeLane, {read(x), write(kept)}, [=](const RunContext& context, backend::Stream&) {
    for (int i = 0; i < 4; ++i) context.addresses->at(kept)[i] = context.addresses->at(x)[i];
    return absl::OkStatus();
  });
  const Parked parked = copy_out(program, "kept", std::span(&kept, 1));
  const Tensor back = copy_in(program, parked)[0];
  add(program, "in", kComputeLane, {read(back), write(y)}, [=](const RunContext& context, backend::Stream&) {
    for (int i = 0; i < 4; ++i) context.addresses->at(y)[i] = context.addresses->at(back)[i];
    return absl::OkStatus();
  });
  EXPECT_EQ(back.shape(), kept.shape());
  const Plan planned = plan(program).value();
  const auto device = testing::create_device();
  const auto executor = create_lane_executor(program, planned, *device, {}).value();
  for (int i = 0; i < 4; ++i) executor->address(x)[i] = static_cast<std::byte>(i + 10);
  ASSERT_TRUE(executor->run().ok());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(std::to_integer<int>(executor->address(y)[i]), i + 10);
}

TEST(OffloadTest, OnlyCopyLanesMayTouchTheHost) {
  Program program;
  const Tensor host = transient(program, "h", 8, MemoryClass::kHost);
  mix(program, "fill", {LaneKind::kCopyIn, 0}, {write(host)});
  EXPECT_TRUE(plan(program).ok());
  mix(program, "norm", kComputeLane, {read(host)});
  EXPECT_THAT(std::string(plan(program).status().message()),
              HasSubstr("op 'norm' on lane compute touches 'h' in host memory"));
}

TEST(OffloadTest, ACopyBetweenSizesIsRefused) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  const Tensor host = transient(program, "h", 4, MemoryClass::kHost);
  program.record_copy("out", LaneKind::kCopyOut, x.in(), host.out());
  const Plan planned = plan(program).value();
  const auto device = testing::create_device();
  const auto executor = create_lane_executor(program, planned, *device, {}).value();
  EXPECT_THAT(std::string(executor->run().message()), HasSubstr("op 'out'"));
}

TEST(WaitForTest, TheNextOpOfTheLaneWaitsAndWhatFollowsWithIt) {
  Program program;
  const Tensor x = persistent(program, "x", 8), y = persistent(program, "y", 8), z = persistent(program, "z", 8);
  const OpId slow = mix(program, "slow", comm_lane(0), {write(x)});
  program.wait_for(kComputeLane, slow);
  const OpId other = mix(program, "other", comm_lane(1), {write(y)});
  const OpId held = mix(program, "held", kComputeLane, {write(z)});
  const OpId next = mix(program, "next", kComputeLane, {update(z)});
  EXPECT_TRUE(program.ops()[other].after.empty());
  EXPECT_TRUE(program.ops()[next].after.empty());
  const Plan planned = plan(program).value();
  EXPECT_EQ(planned.predecessors[held], std::vector<OpId>{slow});
  EXPECT_EQ(planned.ops[held].waits, std::vector<uint32_t>{planned.ops[slow].record});
  EXPECT_EQ(edge_kinds_to_string(build_graph(program).value()[held][0].kinds), "asked");
}

TEST(WaitForTest, ALaterOpIsRefusedAndALostWaitFound) {
  Program program;
  const Tensor x = persistent(program, "x", 8), y = persistent(program, "y", 8);
  mix(program, "slow", comm_lane(0), {write(x)});
  program.wait_for(kComputeLane, 0);
  mix(program, "held", kComputeLane, {write(y)});
  Plan planned = plan(program).value();
  planned.ops[1].waits.clear();
  EXPECT_THAT(std::string(validate(program, planned).message()), HasSubstr("op 'held' does not wait for op 'slow'"));
  program.wait_for(kComputeLane, 2);
  mix(program, "itself", kComputeLane, {write(y)});
  EXPECT_THAT(std::string(plan(program).status().message()), HasSubstr("op 'itself' waits for a later op"));
}

}  // namespace
}  // namespace telar::engine
