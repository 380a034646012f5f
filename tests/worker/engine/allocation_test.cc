// A program of its own, because it counts every allocation of the process: replaying a plan makes none.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/worker/engine/testing.h"

namespace {
std::atomic<int> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
// Not inlined: GCC would see free() meet new and call it a mistake.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace telar::engine {
namespace {

using testing::comm_lane;
using testing::kComputeLane;

TEST(AllocationTest, ReplayingAPlanOnLanesAllocatesNothing) {
  const auto device = testing::create_device();
  Program program;
  std::vector<Tensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(testing::persistent(program, "x", 64));
  for (size_t op = 0; op < 400; ++op) {
    const Lane lane = op % 4 < 2 ? kComputeLane : comm_lane(static_cast<uint32_t>(op % 4));
    testing::mix(program, "op", lane, {testing::update(tensors[op % 4]), testing::read(tensors[(op + 1) % 4])});
  }
  const Plan planned = plan(program).value();
  ASSERT_GT(planned.events, 100u);
  const auto executor = create_lane_executor(program, planned, *device, {}).value();
  for (int run = 0; run < 2; ++run) ASSERT_TRUE(executor->run().ok());  // The second asks the device for a graph.
  const int before = allocations.load();
  ASSERT_GT(before, 400);  // They are counted.
  for (int run = 0; run < 20; ++run) ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(allocations.load(), before);
}

}  // namespace
}  // namespace telar::engine
