// Cordon, uncordon and drain as requests.
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using tests::small_spec;

class Nodes : public tests::ManagerTest {};

TEST_F(Nodes, ARepeatedRequestIsAnsweredAsTheFirstWas) {
  connect();
  const v1::Node first = manager_->set_scheduling("a", v1::Node::CORDONED, "fan", "cordon:1").value();
  EXPECT_EQ(first.scheduling(), v1::Node::CORDONED);
  EXPECT_EQ(first.scheduling_reason(), "fan");
  EXPECT_EQ(manager_->set_scheduling("a", v1::Node::OPEN, "", "uncordon:1")->scheduling(), v1::Node::OPEN);
  open();
  // The answer of then; nothing is done again.
  EXPECT_EQ(manager_->set_scheduling("a", v1::Node::CORDONED, "fan", "cordon:1")->SerializeAsString(),
            first.SerializeAsString());
  connect();
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::OPEN);
}

TEST_F(Nodes, OnlyWhatIsKnownCanBeClosed) {
  const absl::Status status = manager_->set_scheduling("nobody", v1::Node::DRAINING, "", "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reason(status), "NODE_NOT_FOUND");
  connect();
  EXPECT_EQ(manager_->set_scheduling("a", v1::Node::CORDONED, std::string(501, 'x'), "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(Nodes, ACordonedNodeKeepsWhatRunsAndGetsNothingNew) {
  connect();
  const std::string name = submit(small_spec(2));
  run();
  const std::string node = get(name).placement(0).node();
  ASSERT_TRUE(manager_->set_scheduling(node, v1::Node::CORDONED, "", "").ok());
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 1u);
  const std::string four = submit(small_spec(4));
  run();
  EXPECT_EQ(get(four).waiting().reason(), v1::Waiting::NODES);
  EXPECT_FALSE(get(four).waiting().never());
  EXPECT_EQ(get(four).waiting().unblock(), "these are open again: " + node);
}

TEST_F(Nodes, WhatWouldUnblockAJobCountsInWords) {
  connect();
  const std::string two = submit(small_spec(2)), four = submit(small_spec(4));
  run();
  ASSERT_EQ(state(two), "RUNNING");
  EXPECT_EQ(get(four).waiting().unblock(), "2 more CPU devices become free");
  ASSERT_TRUE(cancel(two).ok());
  const std::string one = submit(small_spec(1));
  ASSERT_TRUE(cancel(four).ok());
  run();
  ASSERT_EQ(state(one), "RUNNING");
  const std::string again = submit(small_spec(4));
  run();
  EXPECT_EQ(get(again).waiting().unblock(), "1 more CPU device becomes free");
}

class Goodbye : public Nodes {
 protected:
  // A job of two ranks runs, and the worker that has it ends with its ranks.
  tests::FakeWorker& worker_that_ends() {
    connect();
    name_ = submit(small_spec(2));
    run();
    EXPECT_EQ(state(name_), "RUNNING");
    tests::FakeWorker& worker = worker_of(name_);
    worker.starts = false;
    worker.farewell = v1::HeartbeatRequest::ENDING;
    return worker;
  }
  v1::Node node_of(const tests::FakeWorker& worker) { return manager_->nodes()[&worker == &a_ ? 0 : 1]; }
  std::string name_;
};

TEST_F(Goodbye, WhatRunsMovesAwayAndNobodyPays) {
  tests::FakeWorker& worker = worker_that_ends();
  run();
  run();
  EXPECT_EQ(state(name_), "RUNNING");
  EXPECT_EQ(get(name_).epoch(), 2u);
  EXPECT_EQ(&worker_of(name_), &other_than(worker));
  EXPECT_EQ(get(name_).restarts() + get(name_).node_restarts(), 0u);
  EXPECT_EQ(node_of(worker).state(), v1::Node::READY);  // Its word is still awaited.
}

TEST_F(Goodbye, TheLeaseEndsWithTheLastWord) {
  tests::FakeWorker& worker = worker_that_ends();
  run();
  worker.farewell = v1::HeartbeatRequest::GONE;
  ASSERT_TRUE(worker.beat(*manager_).ok());
  EXPECT_EQ(node_of(worker).state(), v1::Node::OFFLINE);
  EXPECT_EQ(reason(worker.beat(*manager_)), "LEASE_EXPIRED");
  // What nobody else can hold does not wait there, either.
  EXPECT_EQ(get(submit(small_spec(4))).state(), v1::Job::QUEUED);
  manager_->tick();
  EXPECT_EQ(get(name_).epoch(), 2u);
  // A new life of the worker is welcome at once.
  worker.reboot("2");
  worker.starts = true;
  worker.farewell = v1::HeartbeatRequest::LEAVE_UNSPECIFIED;
  ASSERT_TRUE(worker.register_at(*manager_).ok());
  ASSERT_TRUE(worker.beat(*manager_).ok());
  EXPECT_EQ(node_of(worker).state(), v1::Node::READY);
}

TEST_F(Goodbye, AGangThatWasJustPlacedThereIsLetGoWithoutALease) {
  connect();
  a_.starts = b_.starts = false;
  name_ = submit(small_spec(4));
  manager_->tick();
  ASSERT_EQ(state(name_), "STARTING");
  a_.farewell = v1::HeartbeatRequest::GONE;  // Before it has heard of it.
  ASSERT_TRUE(manager_->heartbeat(a_.next_heartbeat()).ok());
  EXPECT_EQ(state(name_), "RESTARTING");
  EXPECT_EQ(get(name_).placement(0).state(), v1::RankPlacement::EXITED);
  ASSERT_TRUE(b_.beat(*manager_).ok());
  ASSERT_TRUE(b_.beat(*manager_).ok());
  EXPECT_EQ(state(name_), "QUEUED");
  EXPECT_EQ(get(name_).node_restarts(), 0u);
}

TEST_F(Goodbye, TheLastWordOfAnEarlierLifeEndsNoLease) {
  connect();
  a_.farewell = v1::HeartbeatRequest::GONE;
  v1::HeartbeatRequest late = a_.next_heartbeat();
  late.set_registration(1);
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  EXPECT_EQ(reason(manager_->heartbeat(late)), "NOT_REGISTERED");
  EXPECT_EQ(node_of(a_).state(), v1::Node::READY);
}

}  // namespace
}  // namespace telar::server::jobs
