// One policy a test, on clusters of numbers.
#include "server/jobs/round.h"

#include <random>

#include "tests/server/jobs/toy_cluster.h"

namespace telar::server::jobs {
namespace {

using tests::ToyCluster;
using tests::Wish;
using v1::Waiting;

std::vector<std::string> started(const RoundResult& result) {
  std::vector<std::string> ids;
  for (const Start& start : result.starts) ids.push_back(start.id);
  return ids;
}
using Ids = std::vector<std::string>;

TEST(Round, HigherPriorityThenOlderComesFirst) {
  ToyCluster toy({2});
  toy.submit({});
  toy.submit({.priority = 5});
  toy.submit({.priority = 5});
  toy.submit({.priority = -1});
  EXPECT_EQ(started(toy.round()), (Ids{"j2", "j3"}));
}

TEST(Round, AHigherQueueComesFirstWhateverItHolds) {
  ToyCluster toy({4});
  toy.queues = {{.name = "default"}, {.name = "urgent", .priority = 1}};
  toy.submit({.priority = 1000});
  for (int i = 0; i < 4; ++i) toy.submit({.queue = "urgent", .priority = -1000});
  EXPECT_EQ(started(toy.round()), (Ids{"j2", "j3", "j4", "j5"}));
}

TEST(Round, QueuesShareByWeightWhatTheyBothWant) {
  ToyCluster toy({8, 4});
  toy.queues = {{.name = "a", .weight = 2}, {.name = "b", .weight = 1}};
  for (int i = 0; i < 20; ++i) toy.submit({.queue = "b"});
  for (int i = 0; i < 20; ++i) toy.submit({.queue = "a"});
  toy.round();
  EXPECT_EQ(toy.held("a"), 8u);
  EXPECT_EQ(toy.held("b"), 4u);
  // What nobody else wants may be had.
  ToyCluster alone({8, 4});
  alone.queues = toy.queues;
  for (int i = 0; i < 20; ++i) alone.submit({.queue = "b"});
  alone.round();
  EXPECT_EQ(alone.held("b"), 12u);
}

TEST(Round, NoQueueGetsMoreThanItsQuota) {
  ToyCluster toy({8});
  toy.queues = {{.name = "q", .quota_devices = 5}};
  const std::string gang = toy.submit({.devices = 4, .queue = "q"});
  const std::string second = toy.submit({.devices = 4, .queue = "q"});
  const std::string small = toy.submit({.queue = "q"});
  const std::string never = toy.submit({.devices = 6, .queue = "q"});
  toy.round();
  EXPECT_TRUE(toy.runs(gang) && toy.runs(small));
  EXPECT_EQ(toy.why(second).reason(), Waiting::QUOTA);
  EXPECT_FALSE(toy.why(second).never());
  EXPECT_EQ(toy.why(second).message(), "needs 4 GPU devices; queue 'q' may have 5 and has 5");
  EXPECT_TRUE(toy.why(never).never());
  toy.end(gang);
  toy.round();
  EXPECT_TRUE(toy.runs(second));
}

TEST(Round, SmallJobsDoNotKeepALargeOneFromItsQuotaForEver) {
  ToyCluster toy({16});
  toy.queues = {{.name = "q", .quota_devices = 8}};
  for (int i = 0; i < 8; ++i) toy.submit({.queue = "q", .runs = 50.0 + 10 * i});
  toy.round();
  const std::string gang = toy.submit({.devices = 8, .queue = "q"});
  for (int i = 0; i < 100 && !toy.runs(gang); ++i) {
    toy.submit({.queue = "q", .runs = 60});
    toy.pass(10);
    toy.round();
  }
  EXPECT_TRUE(toy.runs(gang));
}

TEST(Round, AnArrayRunsNoMoreTasksThanItMay) {
  ToyCluster toy({8});
  std::vector<std::string> tasks;
  for (int i = 0; i < 5; ++i) tasks.push_back(toy.submit({.array = "projects/p/jobs/j1", .array_most = 2}));
  toy.round();
  EXPECT_EQ(toy.running.size(), 2u);
  EXPECT_EQ(toy.why(tasks[2]).reason(), Waiting::ARRAY);
  toy.end(tasks[0]);
  toy.round();
  EXPECT_TRUE(toy.runs(tasks[2]));
  EXPECT_FALSE(toy.runs(tasks[3]));
}

TEST(Round, WhoeverIsHeldBackBlocksNobody) {
  ToyCluster toy({1});
  const std::string first = toy.submit({});
  toy.held_back = {1};
  toy.records.at(first).mutable_job()->mutable_spec()->mutable_scheduling()->add_after();
  toy.line.put(toy.records.at(first));
  const std::string second = toy.submit({});
  toy.records.at(second).mutable_job()->mutable_retry_time()->set_seconds(1'000'010);
  toy.line.put(toy.records.at(second));
  const std::string third = toy.submit({});
  toy.round();
  EXPECT_TRUE(toy.runs(third));
  EXPECT_EQ(toy.why(first).reason(), Waiting::DEPENDENCY);
  EXPECT_EQ(toy.why(second).reason(), Waiting::BACKOFF);
  EXPECT_EQ(toy.why(second).earliest_start().seconds(), 1'000'010);
}

// Eight devices; six are held until 100 s. An 8-gang waits for them.
struct Backfill : testing::Test {
  Backfill() {
    toy.submit({.devices = 6, .limit = 100});
    toy.round();
    gang = toy.submit({.devices = 8});
  }
  ToyCluster toy{{8}};
  std::string gang;
};

TEST_F(Backfill, AJobThatIsGoneInTimePassesTheGang) {
  const std::string too_long = toy.submit({.limit = 101});
  const std::string endless = toy.submit({});
  const std::string in_time = toy.submit({.limit = 100});
  const RoundResult result = toy.round();
  EXPECT_EQ(started(result), Ids{in_time});
  ASSERT_EQ(result.reservations.size(), 1u);
  EXPECT_EQ(result.reservations[0].id, gang);
  EXPECT_EQ(result.reservations[0].start, toy.now + std::chrono::seconds(100));
  const Waiting waiting = toy.why(gang);
  EXPECT_EQ(waiting.reason(), Waiting::DEVICES);
  EXPECT_EQ(waiting.earliest_start().seconds(), 1'000'100);
  const Waiting passed_over = toy.why(too_long);
  EXPECT_EQ(passed_over.reason(), Waiting::PRIORITY);
  EXPECT_EQ(passed_over.behind(0), gang);
  EXPECT_EQ(toy.why(endless).reason(), Waiting::PRIORITY);
  toy.pass(100);
  toy.round();
  EXPECT_TRUE(toy.runs(gang));
}

TEST_F(Backfill, WhatTheGangDoesNotNeedIsForAnybody) {
  ToyCluster wide({8, 2});
  wide.submit({.devices = 8, .tensor = 8, .limit = 100});
  wide.round();
  wide.submit({.devices = 8, .tensor = 8});
  const std::string endless = wide.submit({.devices = 2});
  wide.round();
  EXPECT_TRUE(wide.runs(endless));
}

TEST(Round, AStreamOfSmallJobsDoesNotStarveAGang) {
  for (const uint64_t limit : {uint64_t{0}, uint64_t{60}}) {
    ToyCluster toy({8, 8});
    std::mt19937 draw(5);
    for (int i = 0; i < 16; ++i) toy.submit({.limit = limit, .runs = 20.0 + draw() % 40});
    toy.round();
    const std::string gang = toy.submit({.devices = 8, .tensor = 8});
    double waited = 0;
    for (; waited < 2000 && !toy.runs(gang); waited += 5) {
      for (int i = 0; i < 4; ++i) toy.submit({.limit = limit, .runs = 20.0 + draw() % 40});
      toy.pass(5);
      toy.round();
    }
    EXPECT_TRUE(toy.runs(gang));
    EXPECT_LE(waited, limit > 0 ? 70 : 300 + 70) << "patience and the longest job";
  }
}

TEST(Round, WithoutLimitsSmallerJobsPassForAWhile) {
  ToyCluster toy({4});
  toy.submit({.devices = 3, .runs = 1000});
  toy.round();
  const std::string gang = toy.submit({.devices = 4});
  toy.pass(299);
  const std::string passes = toy.submit({.runs = 10});
  EXPECT_EQ(started(toy.round()), Ids{passes});
  toy.pass(10);
  const std::string waits = toy.submit({.runs = 10});
  const RoundResult result = toy.round();
  EXPECT_EQ(started(result), Ids{});
  ASSERT_EQ(result.reservations.size(), 1u);
  EXPECT_FALSE(result.reservations[0].start.has_value());
  EXPECT_EQ(result.reservations[0].devices, 1u);
  EXPECT_EQ(toy.why(waits).reason(), Waiting::PRIORITY);
  EXPECT_EQ(toy.why(waits).message(), "needs 1 GPU device; 1 free of 4, kept for jobs that come first");
}

TEST(Round, AJobThatTheClusterCouldNotHoldBlocksNobody) {
  ToyCluster toy({4});
  const std::string large = toy.submit({.devices = 5});
  const std::string torn = toy.submit({.devices = 6, .tensor = 6});
  toy.pass(1000);
  const std::string small = toy.submit({});
  toy.round();
  EXPECT_TRUE(toy.runs(small));
  EXPECT_TRUE(toy.why(large).never());
  EXPECT_EQ(toy.why(large).message(), "needs 5 GPU devices; the cluster has 4 in all");
  EXPECT_TRUE(toy.why(torn).never());
}

TEST(Round, ChoosesTheFewestLowestAndYoungestVictims) {
  ToyCluster toy({8});
  toy.queues = {
      {.name = "default"}, {.name = "low", .priority = -1}, {.name = "urgent", .priority = 1, .preempt = true}};
  toy.submit({.devices = 2});                  // j1
  toy.submit({.devices = 2, .queue = "low"});  // j2
  toy.round();
  toy.pass(1);
  toy.submit({.devices = 2, .queue = "low"});                        // j3: younger than j2.
  toy.submit({.devices = 2, .queue = "low", .preemptible = false});  // j4
  toy.round();
  ASSERT_EQ(toy.running.size(), 4u);
  const std::string two = toy.submit({.devices = 2, .queue = "urgent"});
  RoundResult result = toy.round();
  ASSERT_EQ(result.preemptions.size(), 1u);
  EXPECT_EQ(result.preemptions[0].victim, "j3");
  EXPECT_EQ(result.preemptions[0].by, two);
  result = toy.round();
  EXPECT_TRUE(toy.runs(two));
  EXPECT_TRUE(result.preemptions.empty());
  EXPECT_FALSE(toy.runs("j3"));
  const std::string four = toy.submit({.devices = 4, .queue = "urgent"});
  result = toy.round();
  ASSERT_EQ(result.preemptions.size(), 2u);
  EXPECT_EQ(result.preemptions[0].victim, "j2");
  EXPECT_EQ(result.preemptions[1].victim, "j1");
  toy.round();
  EXPECT_TRUE(toy.runs(four));
  // The one that may not be ended is all that is left below it.
  toy.submit({.devices = 2, .queue = "urgent"});
  EXPECT_TRUE(toy.round().preemptions.empty());
}

TEST(Round, OneLargeVictimIsBetterThanManySmallOnes) {
  ToyCluster toy({8});
  toy.queues = {{.name = "default"}, {.name = "urgent", .priority = 1, .preempt = true}};
  const std::string large = toy.submit({.devices = 4, .priority = 3});
  for (int i = 0; i < 4; ++i) toy.submit({});
  toy.round();
  toy.submit({.devices = 4, .queue = "urgent"});
  const RoundResult result = toy.round();
  ASSERT_EQ(result.preemptions.size(), 1u);
  EXPECT_EQ(result.preemptions[0].victim, large);
}

TEST(Round, NobodyIsEndedWhereItWouldNotHelp) {
  ToyCluster toy({4, 4});
  toy.queues = {
      {.name = "default"}, {.name = "urgent", .priority = 1, .preempt = true}, {.name = "calm", .priority = 1}};
  toy.submit({.devices = 1, .preemptible = false});
  toy.submit({.devices = 3});
  toy.submit({.devices = 1, .preemptible = false});
  toy.submit({.devices = 3});
  toy.round();
  toy.submit({.devices = 4, .tensor = 4, .queue = "urgent"});
  EXPECT_TRUE(toy.round().preemptions.empty());
  toy.submit({.devices = 3, .queue = "calm"});  // Its queue does not preempt.
  EXPECT_TRUE(toy.round().preemptions.empty());
}

TEST(Round, WithinAQueueThatPreemptsPriorityDecides) {
  ToyCluster toy({2});
  toy.queues = {{.name = "default", .preempt = true}};
  toy.submit({.priority = 1});
  toy.submit({.priority = 2});
  toy.round();
  toy.submit({.priority = 1});
  EXPECT_TRUE(toy.round().preemptions.empty());
  const std::string higher = toy.submit({.priority = 2});
  const RoundResult result = toy.round();
  ASSERT_EQ(result.preemptions.size(), 1u);
  EXPECT_EQ(result.preemptions[0].victim, "j1");
  toy.round();
  EXPECT_TRUE(toy.runs(higher));
}

TEST(Round, SparesAreForWhoeverLostANode) {
  ToyCluster toy({2, 2});
  toy.inventory.nodes[0].spare = true;
  const std::string usual = toy.submit({.devices = 4});
  EXPECT_TRUE(toy.round().starts.empty());
  EXPECT_EQ(toy.why(usual).reason(), Waiting::NODES);
  const std::string small = toy.submit({.devices = 2});
  EXPECT_EQ(started(toy.round()), Ids{small});
  EXPECT_EQ(toy.inventory.devices[0].holder, "");
  toy.records.at(usual).set_lost_node(true);
  toy.line.put(toy.records.at(usual));
  toy.end(small);
  toy.round();
  EXPECT_TRUE(toy.runs(usual));
  // One that goes without takes none.
  toy.end(usual);
  const std::string one = toy.submit({.devices = 2});
  toy.records.at(one).set_lost_node(true);
  toy.line.put(toy.records.at(one));
  toy.round();
  EXPECT_EQ(toy.inventory.devices[0].holder, "");
  EXPECT_TRUE(toy.runs(one));
}

TEST(Round, LabelsAndExclusionsRestrictTheNodes) {
  ToyCluster toy({2, 2, 2});
  toy.inventory.nodes[1].labels["zone"] = "x";
  toy.inventory.nodes[2].labels["zone"] = "x";
  const std::string id = toy.submit({.devices = 2});
  v1::SchedulingSpec& wishes = *toy.records.at(id).mutable_job()->mutable_spec()->mutable_scheduling();
  (*wishes.mutable_node_labels())["zone"] = "x";
  wishes.add_exclude_nodes("n001");
  toy.line.put(toy.records.at(id));
  toy.inventory.nodes[2].open = false;
  EXPECT_TRUE(toy.round().starts.empty());
  Waiting waiting = toy.why(id);
  EXPECT_EQ(waiting.reason(), Waiting::NODES);
  EXPECT_FALSE(waiting.never());
  EXPECT_NE(waiting.unblock().find("n002"), std::string::npos) << waiting.unblock();
  uint32_t counted = 0;
  for (const v1::DeviceCount& one : waiting.devices()) counted += one.devices();
  EXPECT_EQ(counted, 6u);  // Each device once.
  toy.inventory.nodes[2].open = true;
  toy.round();
  EXPECT_EQ(toy.running.at(id), (std::vector<uint32_t>{4, 5}));
  wishes.add_exclude_nodes("n002");
  const std::string never = toy.submit({.devices = 2});
  *toy.records.at(never).mutable_job()->mutable_spec()->mutable_scheduling() = wishes;
  toy.line.put(toy.records.at(never));
  EXPECT_TRUE(toy.why(never).never());
}

TEST(Round, EnoughDevicesInTheWrongShapeIsSaid) {
  ToyCluster toy({4, 4});
  toy.submit({.devices = 2});
  toy.submit({.devices = 2});
  toy.round();  // Both on one node, so that the other one stays whole.
  toy.inventory.nodes[0].ready = false;
  const std::string id = toy.submit({.devices = 4, .tensor = 4});
  EXPECT_EQ(toy.why(id).reason(), Waiting::DEVICES);
  ToyCluster torn({4, 4});
  for (int i = 0; i < 8; ++i) torn.submit({});
  torn.round();
  for (const uint32_t device : {0u, 1u, 4u, 5u}) torn.end(torn.inventory.devices[device].holder.substr(16));
  const std::string gang = torn.submit({.devices = 4, .tensor = 4});
  const Waiting waiting = torn.why(gang);
  EXPECT_EQ(waiting.reason(), Waiting::SHAPE);
  EXPECT_FALSE(waiting.never());
  EXPECT_EQ(waiting.message(),
            "needs 4 GPU devices; 4 free of 8, but not as whole tensor-parallel groups in one NVLink domain");
}

}  // namespace
}  // namespace telar::server::jobs
