#include "server/cluster/placement.h"

#include <gtest/gtest.h>

namespace telar::server::cluster {
namespace {

FreeNode node(const std::string& name, uint32_t devices) {
  FreeNode free{name, {}};
  for (uint32_t i = 0; i < devices; ++i) {
    free.devices.emplace_back();
    free.devices.back().set_index(i);
  }
  return free;
}

// "a0 a1 b0": node and device of each rank.
std::string placed(std::vector<FreeNode> free, uint32_t world, uint32_t tensor, uint32_t largest = 8) {
  const auto slots = place(std::move(free), world, tensor, largest);
  if (!slots) return "none";
  std::string text;
  for (const Slot& slot : *slots) {
    text += (text.empty() ? "" : " ") + slot.node + std::to_string(slot.device.index());
  }
  return text;
}

TEST(Placement, IsAllOrNothing) {
  EXPECT_EQ(placed({node("a", 2), node("b", 1)}, 4, 1), "none");
  EXPECT_EQ(placed({node("a", 2), node("b", 1)}, 3, 1), "a0 a1 b0");
  EXPECT_EQ(placed({}, 1, 1), "none");
}

TEST(Placement, TakesTheFullestNodeThatHoldsAll) {
  EXPECT_EQ(placed({node("a", 8), node("b", 2), node("c", 4)}, 2, 1), "b0 b1");
  EXPECT_EQ(placed({node("a", 8), node("b", 2), node("c", 4)}, 3, 1), "c0 c1 c2");
}

TEST(Placement, TakesTheFewestNodes) {
  EXPECT_EQ(placed({node("a", 1), node("b", 4), node("c", 4), node("d", 2)}, 6, 1), "b0 b1 b2 b3 d0 d1");
}

TEST(Placement, KeepsTensorGroupsOnOneNode) {
  EXPECT_EQ(placed({node("a", 3), node("b", 3)}, 4, 2), "a0 a1 b0 b1");
  EXPECT_EQ(placed({node("a", 3), node("b", 1)}, 4, 2), "none");      // A group would be torn.
  EXPECT_EQ(placed({node("a", 1), node("b", 1)}, 2, 2, 1), "a0 b0");  // No node could ever hold it.
}

TEST(Placement, PrefersNamesInOrder) { EXPECT_EQ(placed({node("b", 2), node("a", 2)}, 4, 1), "a0 a1 b0 b1"); }

}  // namespace
}  // namespace telar::server::cluster
