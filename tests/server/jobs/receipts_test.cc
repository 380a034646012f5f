// The end of an epoch: nothing is over before every node has said what is left of it there.
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;
using tests::FakeWorker;
using tests::small_spec;

class Receipts : public tests::ManagerTest {
 protected:
  std::string quarantine(const std::string& node, int index) {
    for (const v1::Node& one : manager_->nodes()) {
      if (one.name() == node) return one.devices(index).quarantine();
    }
    return "no such node";
  }
};

TEST_F(Receipts, ACancelIsNotDoneBeforeTheLastOne) {
  const std::string name = running();
  b_.tells_ends = false;
  EXPECT_TRUE(cancel(name).ok());
  run();
  EXPECT_EQ(state(name), "CANCELLING");
  EXPECT_EQ(free_devices(), 0u);
  EXPECT_TRUE(b_.has(name, 1, 2));  // Named until it has told.
  open();                           // Nor is it after a restart.
  connect();
  run();
  EXPECT_EQ(state(name), "CANCELLING");
  b_.tells_ends = true;
  run();
  EXPECT_EQ(state(name), "CANCELLED");
  EXPECT_EQ(free_devices(), 4u);
  EXPECT_FALSE(b_.has(name, 1, 2));
}

TEST_F(Receipts, AFinishedJobWaitsForThemToo) {
  const std::string name = running(small_spec(1));
  FakeWorker& on = worker_of(name);
  on.tells_ends = false;
  on.finish_all();
  run();
  EXPECT_EQ(state(name), "RUNNING");
  on.tells_ends = true;
  run();
  EXPECT_EQ(state(name), "SUCCEEDED");
}

TEST_F(Receipts, WhatIsLeftKeepsItsDeviceOnly) {
  const std::string name = running();
  b_.leave(1, 4711);
  EXPECT_TRUE(cancel(name).ok());
  run();
  EXPECT_EQ(state(name), "CANCELLED");
  ASSERT_EQ(get(name).conditions_size(), 1);
  EXPECT_EQ(get(name).conditions(0).type(), "RESIDUE");
  EXPECT_EQ(get(name).conditions(0).message(), "node b: cpu:1: pid 4711 does not die");
  EXPECT_NE(quarantine("b", 1).find("pid 4711"), std::string::npos);
  EXPECT_EQ(quarantine("a", 0) + quarantine("a", 1) + quarantine("b", 0), "");

  const std::string wide = submit(small_spec(4));
  const std::string narrow = submit(small_spec(3));
  run();
  EXPECT_EQ(state(wide), "QUEUED");
  EXPECT_EQ(state(narrow), "RUNNING");
  open();
  connect();
  run();
  EXPECT_NE(quarantine("b", 1).find("pid 4711"), std::string::npos);
  v1::ReleaseDeviceRequest by_hand;
  by_hand.set_name("b");
  by_hand.set_kind(v1::ResourceSpec::CPU);
  by_hand.set_index(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(manager_->release_device(by_hand).status()));

  b_.leave(1, 0);  // It is gone; so is the quarantine.
  run();
  EXPECT_EQ(quarantine("b", 1), "");
  EXPECT_TRUE(cancel(narrow).ok());
  run();
  run();
  EXPECT_EQ(state(wide), "RUNNING");
}

TEST_F(Receipts, ANodeThatNeverTellsIsDoneWithout) {
  const std::string name = running(small_spec(2));
  FakeWorker& on = worker_of(name);
  const std::string node = get(name).placement(0).node();
  on.tells_ends = false;
  EXPECT_TRUE(cancel(name).ok());
  pass(seconds(59));
  EXPECT_EQ(state(name), "CANCELLING");
  pass(seconds(5));
  EXPECT_EQ(state(name), "CANCELLED");
  ASSERT_EQ(get(name).conditions_size(), 1);
  EXPECT_EQ(get(name).conditions(0).message(), "node " + node + ": it never said that all of it is gone there");
  run();
  EXPECT_EQ(quarantine(node, 0), "");  // It has none of it any more.
}

TEST_F(Receipts, ALostNodeOwesNoneButGivesNothingOutBeforeItHasTold) {
  const std::string name = running(small_spec(2));
  FakeWorker& on = worker_of(name);
  FakeWorker& other = other_than(on);
  pass_with(other, seconds(12));
  EXPECT_EQ(state(name), "RUNNING");
  ASSERT_TRUE(on.register_at(*manager_).ok());
  const std::string second = submit(small_spec(2));
  FakeWorker::die(on.rank(name, 1, 0), 137, v1::CRASH, "");
  FakeWorker::die(on.rank(name, 1, 1), 137, v1::CRASH, "");
  on.tells_ends = false;
  const v1::HeartbeatRequest silent = on.next_heartbeat();
  ASSERT_TRUE(manager_->heartbeat(silent).ok());
  manager_->tick();
  EXPECT_EQ(state(second), "QUEUED");  // Dead they are; whether the devices are free nobody has said.
  on.tells_ends = true;
  ASSERT_TRUE(manager_->heartbeat(on.next_heartbeat()).ok());
  manager_->tick();
  EXPECT_EQ(state(second), "STARTING");
}

TEST_F(Receipts, ANodeLostBetweenTheEndAndItsReceiptDoesNotHoldTheJob) {
  const std::string name = running();
  b_.tells_ends = false;
  EXPECT_TRUE(cancel(name).ok());
  run();
  ASSERT_EQ(state(name), "CANCELLING");
  pass_with(a_, seconds(11));
  EXPECT_EQ(state(name), "CANCELLED");
}

}  // namespace
}  // namespace telar::server::jobs
