#include "worker/engine/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using testing::comm_lane;
using testing::kComputeLane;
using testing::mix;
using testing::persistent;
using testing::read;
using testing::transient;
using testing::update;
using testing::write;

constexpr size_t kActivationArena = static_cast<size_t>(MemoryClass::kActivations);

MemoryPlan memory_of(const Program& program) {
  return plan_memory(program, plan_lanes(program, build_graph(program).value()).order);
}

TEST(MemoryPlanTest, PersistentBuffersComeFirstAndKeepTheirBytes) {
  Program program;
  const Tensor t = transient(program, "t", 10, MemoryClass::kWeights);
  const Tensor a = persistent(program, "a", 300);
  const Tensor b = persistent(program, "b", 1);
  mix(program, "op", kComputeLane, {write(t), write(a), write(b)});
  const MemoryPlan plan = memory_of(program);
  EXPECT_EQ(plan.offsets[a.buffer()], 0u);
  EXPECT_EQ(plan.offsets[b.buffer()], 512u);
  EXPECT_EQ(plan.offsets[t.buffer()], 768u);
  EXPECT_EQ(plan.arena_bytes[static_cast<size_t>(MemoryClass::kWeights)], 1024u);
}

TEST(MemoryPlanTest, ExternalsAndUntouchedTransientsTakeNothing) {
  Program program;
  const Tensor outside = testing::external(program, "outside", 1000);
  transient(program, "untouched", 1000);
  mix(program, "op", kComputeLane, {write(outside)});
  const MemoryPlan plan = memory_of(program);
  for (uint64_t bytes : plan.arena_bytes) EXPECT_EQ(bytes, 0u);
}

TEST(MemoryPlanTest, TransientsOfOneLaneShareBytesWhenOneIsDone) {
  Program program;
  const Tensor a = transient(program, "a", 1024);
  const Tensor b = transient(program, "b", 1024);
  const Tensor c = transient(program, "c", 1024);
  mix(program, "a", kComputeLane, {write(a)});
  mix(program, "b", kComputeLane, {read(a), write(b)});
  mix(program, "c", kComputeLane, {read(b), write(c)});
  const MemoryPlan plan = memory_of(program);
  EXPECT_EQ(plan.offsets[a.buffer()], plan.offsets[c.buffer()]);
  EXPECT_EQ(plan.arena_bytes[kActivationArena], 2048u);
}

// `a` is last read on another lane that nobody waits for: list order alone gives no right to its bytes.
Program send_and_go_on(bool wait) {
  Program program;
  const Tensor a = transient(program, "a", 1024);
  const Tensor b = transient(program, "b", 1024);
  const Tensor received = persistent(program, "received", 8);
  mix(program, "a", kComputeLane, {write(a)});
  mix(program, "send a", comm_lane(0), {read(a), write(received)});
  if (wait) mix(program, "look", kComputeLane, {read(received)});
  mix(program, "b", kComputeLane, {write(b)});
  return program;
}

TEST(MemoryPlanTest, AnotherLanesUseEndsALifeOnlyWhereAWaitSaysSo) {
  EXPECT_EQ(memory_of(send_and_go_on(false)).arena_bytes[kActivationArena], 2048u);
  EXPECT_EQ(memory_of(send_and_go_on(true)).arena_bytes[kActivationArena], 1024u);
}

TEST(MemoryPlanTest, TwoFirstAccessesOnTwoLanesMustBothBeLater) {
  Program program;
  const Tensor a = transient(program, "a", 1024);
  const Tensor b = transient(program, "b", 1024);
  using backend::AccessMode;
  mix(program, "a", kComputeLane, {write(a)});
  mix(program, "b left", kComputeLane, {testing::make_access(b, 0, 512, AccessMode::kWrite)});
  mix(program, "b right", comm_lane(0), {testing::make_access(b, 512, 1024, AccessMode::kWrite)});
  EXPECT_EQ(memory_of(program).arena_bytes[kActivationArena], 2048u);
}

// Forward keeps some tensors of each layer for the backward, whose gradients are reduced on another lane.
Program training_step(uint64_t seed, int layers, bool uneven) {
  std::mt19937_64 random(seed);
  const auto bytes = [&](int64_t base) { return uneven ? base + static_cast<int64_t>(random() % 3000) : base; };
  Program program;
  std::vector<Tensor> kept, wide;
  const Tensor weights = persistent(program, "weights", 4096);
  Tensor x = transient(program, "x", bytes(4096));
  mix(program, "embed", kComputeLane, {read(weights), write(x)});
  for (int layer = 0; layer < layers; ++layer) {
    const Tensor h = transient(program, "h", bytes(16384));
    const Tensor scratch = transient(program, "scratch", bytes(12288));
    const Tensor y = transient(program, "y", bytes(4096));
    mix(program, "up", kComputeLane, {read(x), write(h)});
    mix(program, "act", kComputeLane, {read(h), write(scratch)});
    mix(program, "down", kComputeLane, {read(scratch), write(y)});
    kept.push_back(x);
    wide.push_back(h);
    x = y;
  }
  const Tensor logits = transient(program, "logits", bytes(100000));
  mix(program, "head", kComputeLane, {read(x), write(logits)});
  Tensor dy = transient(program, "dx", bytes(4096));
  mix(program, "head.backward", kComputeLane, {read(logits), write(dy)});
  for (int layer = layers - 1; layer >= 0; --layer) {
    const auto l = static_cast<size_t>(layer);
    const Tensor dh = transient(program, "dh", bytes(16384));
    const Tensor dx = transient(program, "dx", bytes(4096));
    const Tensor grad = persistent(program, "grad", 2048, MemoryClass::kGrads);
    mix(program, "dh", kComputeLane, {read(dy), read(wide[l]), write(dh)});
    mix(program, "wgrad", kComputeLane, {read(dh), read(kept[l]), write(grad)});
    mix(program, "dx", kComputeLane, {read(dh), write(dx)});
    mix(program, "reduce", comm_lane(0), {update(grad)});
    dy = dx;
  }
  return program;
}

TEST(MemoryPlanTest, PeakOfATrainingStepIsTheLeastPossible) {
  const Program program = training_step(1, 24, false);
  EXPECT_EQ(memory_of(program).arena_bytes, least_arena_bytes(program));
}

TEST(MemoryPlanTest, PeakOfAnUnevenTrainingStepIsNearTheLeastPossible) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Program program = training_step(seed, 24, true);
    const auto got = static_cast<double>(memory_of(program).arena_bytes[kActivationArena]);
    const auto least = static_cast<double>(least_arena_bytes(program)[kActivationArena]);
    EXPECT_GE(got, least);
    EXPECT_LE(got, 1.03 * least) << seed;
  }
}

}  // namespace
}  // namespace telar::engine
