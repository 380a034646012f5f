#include "server/cluster/placement.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace telar::server::cluster {
namespace {

constexpr uint32_t kNumbers = 1000;  // Device i of node "c" is 2 * kNumbers + i.

// A node with so many free devices in each of its NVLink domains.
FreeNode node(const std::string& name, const std::vector<uint32_t>& domains, const std::string& rack = "") {
  FreeNode free{name, rack, {}};
  uint32_t number = 0, id = static_cast<uint32_t>(name[0] - 'a') * kNumbers;
  for (const uint32_t devices : domains) {
    for (uint32_t i = 0; i < devices; ++i) free.devices.push_back({id++, number});
    ++number;
  }
  return free;
}
FreeNode node(const std::string& name, uint32_t devices) { return node(name, std::vector<uint32_t>{devices}); }

// "a0 a1 b0": node and device of each rank.
std::string placed(std::vector<FreeNode> free, const GangShape& shape) {
  const auto slots = place(std::move(free), shape);
  if (!slots) return "none";
  std::string text;
  for (const uint32_t id : *slots) {
    text += (text.empty() ? "" : " ") + std::string(1, static_cast<char>('a' + id / kNumbers)) +
            std::to_string(id % kNumbers);
  }
  return text;
}
std::string placed(std::vector<FreeNode> free, uint32_t world, uint32_t tensor) {
  return placed(std::move(free), GangShape{.tensor = tensor, .data = world / tensor});
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
  EXPECT_EQ(placed({node("a", 3), node("b", 1)}, 4, 2), "none");  // A group would be torn.
  EXPECT_EQ(placed({node("a", 1), node("b", 1)}, 2, 2), "none");
}

TEST(Placement, TearsTensorGroupsOnlyWhereToldTo) {
  GangShape shape{.tensor = 2, .data = 2, .tensor_across_domains = true};
  EXPECT_EQ(placed({node("a", 3), node("b", 3)}, shape), "a0 a1 b0 b1");  // Not needed.
  EXPECT_EQ(placed({node("a", 3), node("b", 1)}, shape), "a0 a1 a2 b0");
  shape = {.tensor = 16, .tensor_across_domains = true};
  EXPECT_EQ(placed({node("b", 8), node("a", 8)}, shape), "a0 a1 a2 a3 a4 a5 a6 a7 b0 b1 b2 b3 b4 b5 b6 b7");
}

TEST(Placement, KeepsTensorGroupsInOneNvlinkDomain) {
  EXPECT_EQ(placed({node("a", {3, 3})}, 4, 2), "a0 a1 a3 a4");
  EXPECT_EQ(placed({node("a", {1, 1})}, 2, 2), "none");
  EXPECT_EQ(placed({node("a", {4, 4})}, 8, 8), "none");
  EXPECT_EQ(placed({node("a", {4, 4})}, {.tensor = 8, .tensor_across_domains = true}), "a0 a1 a2 a3 a4 a5 a6 a7");
  // The fullest domain that holds all; the odd device of b is of no use.
  EXPECT_EQ(placed({node("a", {4, 2})}, 2, 2), "a4 a5");
  EXPECT_EQ(placed({node("a", {4, 4}), node("b", {3, 2})}, 4, 2), "b0 b1 b3 b4");
  // Six devices, but only two groups.
  EXPECT_EQ(placed({node("a", {3}), node("b", {1, 2})}, 6, 2), "none");
  EXPECT_EQ(placed({node("a", {3}), node("b", {1, 2})}, 4, 2), "a0 a1 b1 b2");
}

// Ranks are ((pp * data) + dp) * tensor + tp.
TEST(Placement, KeepsTheReplicasOfAStageOnOneNode) {
  const GangShape shape{.tensor = 2, .data = 2, .pipeline = 2};
  EXPECT_EQ(placed({node("a", 4), node("b", 4)}, shape), "a0 a1 a2 a3 b0 b1 b2 b3");
  EXPECT_EQ(placed({node("a", 8)}, shape), "a0 a1 a2 a3 a4 a5 a6 a7");
  // Two nodes of eight would do with a torn stage; three keep all of them whole.
  const GangShape four{.tensor = 1, .data = 3, .pipeline = 4};
  EXPECT_EQ(placed({node("a", 8), node("b", 4), node("c", 4)}, four), "a0 a1 a2 a3 a4 a5 b0 b1 b2 c0 c1 c2");
  // Where that is not possible a torn one is better than none, neighbours still side by side.
  EXPECT_EQ(placed({node("a", 7), node("b", 5)}, four), "a0 a1 a2 a3 a4 a5 a6 b0 b1 b2 b3 b4");
}

TEST(Placement, KeepsHybridShardGroupsOnOneNode) {
  // Two replicas share their optimizer state and are copied to two more.
  const GangShape shape{.data = 4, .pipeline = 2, .shard = 2};
  EXPECT_EQ(placed({node("a", 6), node("b", 2)}, shape), "a0 a1 a2 a3 a4 a5 b0 b1");
  EXPECT_EQ(placed({node("a", 3), node("b", 3), node("c", 3)}, {.data = 6, .shard = 2}), "a0 a1 b0 b1 c0 c1");
}

TEST(Placement, ShapesFollowFromTheSpec) {
  v1::JobSpec spec;
  EXPECT_EQ(shape_of(spec).world(), 1u);  // As an older coordinator stored it.
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_tensor(2);
  parallel.set_pipeline(3);
  parallel.set_data(4);
  parallel.set_shard(2);
  EXPECT_EQ(shape_of(spec).world(), 24u);
  EXPECT_EQ(shape_of(spec).shard, 1u);
  parallel.set_zero_stage(1);
  EXPECT_EQ(shape_of(spec).shard, 2u);
  parallel.set_shard(4);  // All of them: wherever replicas are.
  EXPECT_EQ(shape_of(spec).shard, 1u);
  EXPECT_FALSE(shape_of(spec).tensor_across_domains);
}

// On random clusters: no device twice, every group in one domain, and nothing that fits is refused.
TEST(Placement, HoldsItsRulesOnUnevenClusters) {
  std::mt19937 draw(11);
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<FreeNode> free;
    uint32_t groups = 0;
    const auto below = [&draw](uint32_t limit) { return static_cast<uint32_t>(draw() % limit); };
    const GangShape shape{.tensor = 1 + below(4), .data = 1 + below(4), .pipeline = 1 + below(3)};
    const uint32_t nodes = 1 + below(5);
    for (uint32_t i = 0; i < nodes; ++i) {
      std::vector<uint32_t> domains(1 + below(3));
      for (uint32_t& devices : domains) {
        devices = below(6);
        groups += devices / shape.tensor;
      }
      free.push_back(node(std::string(1, static_cast<char>('a' + i)), domains));
    }
    const auto slots = place(free, shape);
    ASSERT_EQ(slots.has_value(), groups >= shape.data * shape.pipeline) << round;
    if (!slots) continue;
    ++found;
    ASSERT_EQ(slots->size(), shape.world());
    std::map<uint32_t, std::pair<uint32_t, uint32_t>> homes;  // Device -> node and domain.
    for (const FreeNode& one : free) {
      for (const FreeDevice& device : one.devices) homes[device.id] = {device.id / kNumbers, device.domain};
    }
    std::set<uint32_t> taken;
    for (size_t rank = 0; rank < slots->size(); ++rank) {
      EXPECT_TRUE(taken.insert((*slots)[rank]).second) << round;
      EXPECT_EQ(homes.at((*slots)[rank]), homes.at((*slots)[rank / shape.tensor * shape.tensor])) << round;
    }
  }
  EXPECT_GT(found, 200);
}

TEST(Placement, PrefersTheRackThatItIsInAmongEqualNodes) {
  const auto four = [](const std::string& a, const std::string& b, const std::string& c, const std::string& d) {
    return std::vector<FreeNode>{node("a", {4}, a), node("b", {4}, b), node("c", {4}, c), node("d", {4}, d)};
  };
  const GangShape two_stages{.data = 4, .pipeline = 2};
  EXPECT_EQ(placed(four("", "", "", ""), two_stages), "a0 a1 a2 a3 d0 d1 d2 d3");
  EXPECT_EQ(placed(four("x", "y", "x", "y"), two_stages), "a0 a1 a2 a3 c0 c1 c2 c3");
  // A rack that holds all of it, the smallest of such.
  EXPECT_EQ(placed(four("x", "y", "y", "z"), two_stages), "b0 b1 b2 b3 c0 c1 c2 c3");
  // No rack does: the largest first, and neighbours stay neighbours.
  const GangShape three_stages{.data = 4, .pipeline = 3};
  EXPECT_EQ(placed(four("x", "y", "x", "z"), three_stages), "a0 a1 a2 a3 c0 c1 c2 c3 b0 b1 b2 b3");
  // A node of the right size wins over one of the right rack.
  EXPECT_EQ(placed({node("a", {4}, "x"), node("b", {4}, "x"), node("c", {2}, "y")}, {.data = 2, .pipeline = 3}),
            "a0 a1 a2 a3 c0 c1");
}

TEST(Placement, PrefersNamesInOrder) { EXPECT_EQ(placed({node("b", 2), node("a", 2)}, 4, 1), "a0 a1 b0 b1"); }

}  // namespace
}  // namespace telar::server::cluster
