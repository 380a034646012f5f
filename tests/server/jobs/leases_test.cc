// What silence proves and what it does not, and wall clocks that are set while jobs run: docs/adr/0010.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using tests::FakeWorker;
using tests::small_spec;

class Leases : public tests::ManagerTest {
 protected:
  std::string starting() {
    connect();
    a_.starts = b_.starts = false;
    const std::string name = submit(small_spec(4));
    manager_->tick();
    EXPECT_EQ(state(name), "STARTING");
    return name;
  }
  // What the manager has to say gets lost on its way.
  void beat_unanswered(FakeWorker& worker) { ASSERT_TRUE(manager_->heartbeat(worker.next_heartbeat()).ok()); }
  std::string reason_of(const v1::HeartbeatRequest& request) { return reason(manager_->heartbeat(request)); }
};

TEST_F(Leases, NoNumberOfHeartbeatsProvesThatAStartIsNotUnderWay) {
  const std::string name = starting();
  const v1::HeartbeatResponse late = manager_->assignments("a");  // RUN, on its way.
  ASSERT_TRUE(cancel(name).ok());
  for (int i = 0; i < 10; ++i) {
    (void)manager_->assignments("a");
    beat_unanswered(a_);
    manager_->tick();
  }
  ASSERT_TRUE(b_.beat(*manager_).ok());
  ASSERT_TRUE(b_.beat(*manager_).ok());
  EXPECT_EQ(state(name), "CANCELLING");
  EXPECT_EQ(free_devices(), 0u);
  a_.starts = true;
  a_.follow(late);
  EXPECT_TRUE(a_.has(name, 1, 0));  // There it is.
  run();
  EXPECT_EQ(state(name), "CANCELLED");
}

TEST_F(Leases, AHeartbeatOfAnEarlierRegistrationDoesNotCount) {
  connect();
  const v1::RegisterNodeRequest again = [] {
    v1::RegisterNodeRequest request;
    request.set_node("a");
    request.set_incarnation("1");
    request.add_devices()->set_kind(v1::ResourceSpec::CPU);
    return request;
  }();
  const auto first = manager_->register_node(again);
  const auto second = manager_->register_node(again);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->registration(), second->registration());
  v1::HeartbeatRequest request = a_.next_heartbeat();
  request.set_registration(first->registration());
  EXPECT_EQ(reason_of(request), "NOT_REGISTERED");
  request.set_registration(second->registration());
  EXPECT_EQ(reason_of(request), "");
  request.set_registration(0);  // A worker that knows nothing of it.
  EXPECT_EQ(reason_of(request), "");
}

TEST_F(Leases, AWallClockThatIsSetLosesNobody) {
  const std::string name = running();
  for (const auto step : {hours(1), hours(-2), hours(1)}) {
    clock_.set_wall(step);
    manager_->tick();
    beat();
    for (const v1::Node& node : manager_->nodes()) EXPECT_EQ(node.state(), v1::Node::READY);
  }
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 1u);
}

// Every call that leaves something behind, made for another epoch than the one that runs.
TEST_F(Leases, EveryWriteOfAnotherEpochIsRefused) {
  const std::string name = running();
  FakeWorker::die(a_.rank(name, 1, 0), 139, v1::CRASH, "");
  run();
  pass(seconds(40));
  ASSERT_EQ(state(name), "RUNNING");
  ASSERT_EQ(get(name).epoch(), 2u);
  for (const uint64_t epoch : {0, 1, 3}) {
    v1::AppendLogRequest log;
    log.set_node(get(name).placement(0).node());
    log.set_job(name);
    log.set_epoch(epoch);
    log.set_data("late");
    EXPECT_EQ(reason(manager_->append_log(log).status()), "STALE_EPOCH") << epoch;
    EXPECT_EQ(reason(report(name, epoch, 0, {step_event(1, 5)}).status()), "STALE_EPOCH") << epoch;
    EXPECT_EQ(reason(manager_->put_key(name, epoch, "rank_0", "x")), "STALE_EPOCH") << epoch;
    EXPECT_EQ(reason(manager_->keys(name, epoch).status()), "STALE_EPOCH") << epoch;
    EXPECT_EQ(reason(manager_->commit_checkpoint(name, epoch, 7)), "STALE_EPOCH") << epoch;
    EXPECT_EQ(reason(manager_->last_commit(name, epoch).status()), "STALE_EPOCH") << epoch;
  }
  EXPECT_EQ(manager_->read_log(name, 1, 0, 0)->data, "");
}

// What is said of an epoch that is over says nothing of the one that runs; a process of it keeps its node closed.
TEST_F(Leases, AnOldRankIsNoRankOfTheNewEpoch) {
  const std::string name = running(small_spec(1));
  FakeWorker& worker = worker_of(name);
  v1::HeartbeatRequest old = worker.next_heartbeat();
  FakeWorker::die(worker.rank(name, 1, 0), 139, v1::CRASH, "");
  run();
  pass(seconds(40));
  ASSERT_EQ(get(name).epoch(), 2u);
  const v1::RankPlacement before = get(name).placement(0);
  v1::RankStatus& status = *old.mutable_ranks(0);
  FakeWorker::die(status, 1, v1::CONFIG, "of long ago");
  v1::HeartbeatRequest request = worker_of(name).next_heartbeat();
  *request.add_ranks() = status;
  ASSERT_TRUE(manager_->heartbeat(request).ok());
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).placement(0).SerializeAsString(), before.SerializeAsString());
  request.mutable_ranks(request.ranks_size() - 1)->set_state(v1::RankPlacement::RUNNING);
  ASSERT_TRUE(manager_->heartbeat(request).ok());
  const std::string second = submit(small_spec(3));
  manager_->tick();
  EXPECT_EQ(state(second), "QUEUED");
  run();  // The worker kills it, and says so.
  EXPECT_EQ(state(second), "RUNNING");
}

class Retry : public Leases {
 protected:
  // A job that waits 10 s for its restart.
  std::string failed() {
    v1::JobSpec spec = small_spec(4);
    spec.mutable_restart()->set_backoff_seconds(10);
    const std::string name = running(spec);
    FakeWorker::die(a_.rank(name, 1, 0), 139, v1::CRASH, "");
    run();
    EXPECT_EQ(state(name), "QUEUED");
    return name;
  }
};

TEST_F(Retry, IsNotDelayedByAWallClockThatIsSetBack) {
  const std::string name = failed();
  clock_.set_wall(hours(-1));
  pass(seconds(9));
  EXPECT_EQ(state(name), "QUEUED");
  pass(seconds(2));
  run();
  EXPECT_EQ(state(name), "RUNNING");
}

TEST_F(Retry, IsNotHastenedByOneThatIsSetForward) {
  const std::string name = failed();
  clock_.set_wall(hours(1));
  pass(seconds(9));
  EXPECT_EQ(state(name), "QUEUED");
}

TEST_F(Retry, WaitsNoLongerThanItsDelayAfterARestartEither) {
  const std::string name = failed();
  clock_.set_wall(hours(-1));
  open();
  connect();
  pass(seconds(12));
  EXPECT_EQ(state(name), "RUNNING");
}

TEST_F(Leases, OurOwnKillIsNoFailureThoughTheWallClockWasSetBack) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 25, v1::COMMUNICATION, "peer went away");
  beat();
  clock_.set_wall(hours(-1));
  pass(seconds(15));  // The grace.
  FakeWorker::die(b_.rank(name, 1, 2), 137, v1::CRASH, "killed by signal 9");
  beat();
  EXPECT_EQ(get(name).message(), "rank 0 on node a: COMMUNICATION: peer went away");
}

// Of wall clocks that are set while a job runs, and of coordinators that are started again after it.
class SetClock : public Leases, public testing::WithParamInterface<std::tuple<int, bool>> {
 protected:
  void set_clock() {
    const auto [step, again] = GetParam();
    clock_.set_wall(hours(step));
    manager_->tick();
    if (!again) return;
    open();
    connect();
  }
};
INSTANTIATE_TEST_SUITE_P(ForwardAndBack, SetClock, testing::Combine(testing::Values(5, -5), testing::Bool()));

TEST_P(SetClock, ATimeLimitIsWhatIsRun) {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_scheduling()->set_time_limit_seconds(100);
  const std::string name = running(spec);
  pass(seconds(60));
  set_clock();
  pass(seconds(30));
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_NEAR(get(name).run_seconds(), 90, 2);
  pass(seconds(20));
  EXPECT_NE(state(name), "RUNNING");
}

TEST_P(SetClock, ReceiptsAreWaitedForAsLongAsWasSaid) {
  const std::string name = running();
  b_.tells_ends = false;
  ASSERT_TRUE(cancel(name).ok());
  run();
  ASSERT_EQ(state(name), "CANCELLING");
  set_clock();
  pass(seconds(55));
  EXPECT_EQ(state(name), "CANCELLING");
  pass(seconds(10));
  EXPECT_EQ(state(name), "CANCELLED");
}

TEST_P(SetClock, EachSecondOfAJobIsCountedOnce) {
  const std::string name = running();
  pass(seconds(10));
  set_clock();
  pass(seconds(10));
  ASSERT_TRUE(cancel(name).ok());
  run();
  ASSERT_EQ(state(name), "CANCELLED");
  EXPECT_NEAR(get(name).goodput().productive_seconds(), 20, 2);
  EXPECT_NEAR(get(name).run_seconds(), 20, 2);
}

TEST_P(SetClock, AFailureWithinTheGraceIsNotTakenForOurKill) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 25, v1::COMMUNICATION, "peer went away");
  beat();
  set_clock();
  pass(seconds(2));
  FakeWorker::die(b_.rank(name, 1, 2), 137, v1::CRASH, "killed by signal 9");
  beat();
  a_.obeys_stop = b_.obeys_stop = true;
  pass(seconds(5));
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).restarts(), 1u);  // Somebody else killed it: rank 0 only lost its peer.
  EXPECT_EQ(get(name).node_restarts(), 0u);
}

TEST_F(Leases, TimesThatPeopleReadAreTheWallClocks) {
  const std::string name = running();
  clock_.set_wall(hours(5));
  manager_->tick();
  ASSERT_TRUE(cancel(name).ok());
  run();
  const v1::Job job = get(name);
  EXPECT_NEAR(static_cast<double>(job.end_time().seconds() - job.create_time().seconds()), 5 * 3600, 2);
}

}  // namespace
}  // namespace telar::server::jobs
