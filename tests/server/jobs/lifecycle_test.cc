// What becomes of a job: start, finish, failures, node loss and cancel.
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;
using tests::FakeWorker;
using tests::small_spec;

class Lifecycle : public tests::ManagerTest {};

TEST_F(Lifecycle, RunsToItsEnd) {
  const std::string name = running();
  const v1::Job job = get(name);
  EXPECT_EQ(job.epoch(), 1u);
  EXPECT_EQ(job.placement(1).node(), "a");
  EXPECT_EQ(job.placement(2).node(), "b");
  EXPECT_EQ(job.run_dir(), "/runs/" + job_id(name));
  EXPECT_EQ(free_devices(), 0u);
  const v1::RankPlan& plan = b_.plans.at({name, 1, 3});
  EXPECT_EQ(plan.world_size(), 4u);
  EXPECT_EQ(plan.spec().parallel().data(), 4u);
  EXPECT_EQ(std::vector<uint32_t>(plan.node_ranks().begin(), plan.node_ranks().end()), (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(plan.device().index(), 1u);
  EXPECT_EQ(plan.rendezvous_address(), "127.0.0.1:7070");
  EXPECT_GT(plan.spec().model().vocab(), 0u);  // Complete.

  a_.finish_all();
  beat();
  EXPECT_EQ(state(name), "RUNNING");  // b's ranks are not done.
  b_.finish_all();
  run();
  EXPECT_EQ(state(name), "SUCCEEDED");
  EXPECT_EQ(path(name), "QUEUED STARTING RUNNING SUCCEEDED ");
  EXPECT_EQ(free_devices(), 4u);
  EXPECT_TRUE(get(name).has_end_time());
  EXPECT_FALSE(a_.has(name, 1, 0));  // Forgotten.
}

TEST_F(Lifecycle, IsNotOverBeforeItsOutputIsShipped) {
  const std::string name = running(small_spec(1));
  v1::RankStatus& rank = worker_of(name).rank(name, 1, 0);
  rank.set_state(v1::RankPlacement::EXITED);
  rank.set_finished(true);
  worker_of(name).obeys_stop = false;
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(free_devices(), 3u);
  worker_of(name).rank(name, 1, 0).set_output_shipped(true);
  run();
  EXPECT_EQ(state(name), "SUCCEEDED");
}

TEST_F(Lifecycle, AFailedRankRestartsTheGang) {
  const std::string name = running();
  FakeWorker::die(b_.rank(name, 1, 3), 139, v1::CRASH, "killed by signal 11");
  a_.obeys_stop = b_.obeys_stop = false;
  beat();
  EXPECT_EQ(state(name), "RESTARTING");
  EXPECT_EQ(get(name).message(), "rank 3 on node b: CRASH: killed by signal 11");
  run();
  EXPECT_EQ(state(name), "RESTARTING");  // Until every process is gone.
  EXPECT_EQ(free_devices(), 0u);
  a_.obeys_stop = b_.obeys_stop = true;
  beat();
  beat();
  EXPECT_EQ(state(name), "QUEUED");
  EXPECT_EQ(get(name).restarts(), 1u);
  EXPECT_EQ(get(name).placement_size(), 0);
  EXPECT_EQ(free_devices(), 4u);
  pass(seconds(1));  // Back-off.
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 2u);
  EXPECT_TRUE(a_.has(name, 2, 0));
  EXPECT_FALSE(a_.has(name, 1, 0));
}

TEST_F(Lifecycle, TheCauseIsNotAVictim) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 25, v1::COMMUNICATION, "peer 3 went away");
  beat();
  EXPECT_EQ(state(name), "RESTARTING");
  EXPECT_EQ(get(name).message(), "rank 0 on node a: COMMUNICATION: peer 3 went away");
  FakeWorker::die(b_.rank(name, 1, 3), 23, v1::DATA, "train.bin: id 60000 is beyond the vocabulary");
  beat();
  EXPECT_EQ(state(name), "FAILING");  // A retry would not help.
  a_.obeys_stop = b_.obeys_stop = true;
  run();
  EXPECT_EQ(state(name), "FAILED");
  EXPECT_EQ(get(name).failure_class(), v1::DATA);
  EXPECT_EQ(get(name).message(), "rank 3 on node b: DATA: train.bin: id 60000 is beyond the vocabulary");
  EXPECT_EQ(get(name).restarts(), 0u);
  EXPECT_EQ(path(name), "QUEUED STARTING RUNNING RESTARTING FAILING FAILED ");
  EXPECT_EQ(free_devices(), 4u);
}

TEST_F(Lifecycle, OwnFailuresSpendTheirBudgetWithADoublingDelay) {
  v1::JobSpec spec = small_spec(1);
  spec.mutable_restart()->set_max_restarts(2);
  spec.mutable_restart()->set_backoff_seconds(4);
  const std::string name = running(spec);
  for (int delay : {4, 8}) {
    FakeWorker::die(worker_of(name).rank(name, get(name).epoch(), 0), 24, v1::NUMERIC, "loss is not finite");
    run();
    ASSERT_EQ(state(name), "QUEUED");
    pass(seconds(delay - 1));
    EXPECT_EQ(state(name), "QUEUED");
    pass(seconds(1));
    run();
    ASSERT_EQ(state(name), "RUNNING");
  }
  FakeWorker::die(worker_of(name).rank(name, 3, 0), 24, v1::NUMERIC, "loss is not finite");
  run();
  EXPECT_EQ(state(name), "FAILED");
  EXPECT_EQ(get(name).restarts(), 2u);
  EXPECT_EQ(get(name).failure_class(), v1::NUMERIC);
  EXPECT_NE(get(name).message().find("no restart left (restart.max_restarts: 2)"), std::string::npos);
}

TEST_F(Lifecycle, ALostNodePaysFromItsOwnBudget) {
  const std::string name = running(small_spec(2));  // Fits one node.
  FakeWorker& on = worker_of(name);
  FakeWorker& other = other_than(on);
  pass_with(other, seconds(12));
  EXPECT_EQ(state(name), "RUNNING");  // On the other node.
  EXPECT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(get(name).restarts(), 0u);
  EXPECT_EQ(get(name).node_restarts(), 1u);
  EXPECT_EQ(path(name), "QUEUED STARTING RUNNING RESTARTING QUEUED STARTING RUNNING ");

  // The old node returns with epoch 1 still running: refused, told to kill it, and not used before that is done.
  EXPECT_FALSE(on.beat(*manager_).ok());
  ASSERT_TRUE(on.register_at(*manager_).ok());
  EXPECT_TRUE(on.has(name, 1, 0));
  const std::string second = submit(small_spec(2));
  ASSERT_TRUE(on.beat(*manager_).ok());  // Reports the stale ranks, and drops them by the answer.
  manager_->tick();
  EXPECT_EQ(state(second), "QUEUED");
  EXPECT_FALSE(on.has(name, 1, 0));
  run();
  EXPECT_EQ(state(second), "RUNNING");
}

TEST_F(Lifecycle, ARebootedNodeHasNoRanksAnyMore) {
  const std::string name = running();
  b_.reboot("2");
  ASSERT_TRUE(b_.register_at(*manager_).ok());
  beat();
  EXPECT_EQ(state(name), "RESTARTING");
  EXPECT_EQ(get(name).message(), "rank 2 on node b: NODE_LOST: its worker came back without it");
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).node_restarts(), 1u);
}

TEST_F(Lifecycle, AnInterruptedRankCostsNothing) {
  const std::string name = running();
  FakeWorker::die(a_.rank(name, 1, 0), 25, v1::COMMUNICATION, "peer 2 went away");
  FakeWorker::die(b_.rank(name, 1, 2), 10, v1::FAILURE_CLASS_UNSPECIFIED, "");
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(get(name).restarts(), 0u);
  EXPECT_EQ(get(name).node_restarts(), 0u);
}

// As by the shutdown of its worker, in the first moment of the process.
TEST_F(Lifecycle, ARankThatSigtermMetBeforeItBeganCostsNothing) {
  const std::string name = running();
  FakeWorker::die(b_.rank(name, 1, 2), 143, v1::CRASH, "killed by signal 15");
  run();
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(get(name).restarts(), 0u);
}

TEST_F(Lifecycle, OurOwnKillIsNoFailure) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 25, v1::COMMUNICATION, "peer went away");
  beat();
  pass(seconds(15));  // The grace.
  FakeWorker::die(b_.rank(name, 1, 2), 137, v1::CRASH, "killed by signal 9");
  beat();
  EXPECT_EQ(get(name).message(), "rank 0 on node a: COMMUNICATION: peer went away");
  a_.obeys_stop = b_.obeys_stop = true;
  run();
  const auto page = manager_->events(name, 0, 100);
  bool named = false;
  for (const v1::JobEvent& event : page->events) {
    named |= event.state_change().reason().find("node restart 1 of 100 after rank 0 on node a") != std::string::npos;
  }
  EXPECT_TRUE(named);
}

// What the assignments of a node say of the time from SIGTERM to SIGKILL.
int64_t grace_seconds(JobManager& manager, const std::string& node) {
  return manager.assignments(node).assignments(0).grace().seconds();
}

TEST_F(Lifecycle, TheJobSaysHowLongASaveMayTake) {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_checkpoint()->set_stop_grace_seconds(600);
  const std::string name = running(spec);
  ASSERT_TRUE(cancel(name).ok());
  EXPECT_EQ(grace_seconds(*manager_, "a"), 600);
  EXPECT_EQ(grace_seconds(*manager_, "b"), 600);
}

TEST_F(Lifecycle, WhereARankHasDiedTheOthersNeedNoTimeToSave) {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_checkpoint()->set_stop_grace_seconds(600);
  const std::string name = running(spec);
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 139, v1::CRASH, "killed by signal 11");
  beat();
  EXPECT_EQ(state(name), "RESTARTING");
  EXPECT_EQ(grace_seconds(*manager_, "b"), 15);
}

TEST_F(Lifecycle, AJobThatSaysNothingHasTheUsualGrace) {
  const std::string name = running();
  ASSERT_TRUE(cancel(name).ok());
  EXPECT_EQ(grace_seconds(*manager_, "a"), 15);
}

TEST_F(Lifecycle, APassedOverCheckpointIsToldAndKept) {
  const std::string name = running();
  v1::RankEvent event;
  event.mutable_started()->set_resumed_from("/runs/x/ckpt/step-00000010");
  event.mutable_started()->add_passed_over("/runs/x/ckpt/step-00000020: damaged");
  ASSERT_TRUE(report(name, 1, 0, {event}).ok());
  EXPECT_EQ(get(name).progress().resumed_from(), "/runs/x/ckpt/step-00000010");
  ASSERT_EQ(get(name).progress().passed_over_size(), 1);
  const auto page = manager_->events(name, 0, 100);
  EXPECT_EQ(page->events.back().rank_report().event().started().passed_over(0), "/runs/x/ckpt/step-00000020: damaged");
}

TEST_F(Lifecycle, AForeignKillSoonAfterAVictimIsTheCause) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 25, v1::COMMUNICATION, "peer went away");
  beat();
  FakeWorker::die(b_.rank(name, 1, 2), 137, v1::CRASH, "killed by signal 9");
  a_.obeys_stop = b_.obeys_stop = true;
  beat();
  beat();
  EXPECT_EQ(get(name).message(), "restart 1 of 3 after rank 2 on node b: CRASH: killed by signal 9");
}

class Cancel : public tests::ManagerTest {
 protected:
  // Asks twice, and lets the job end.
  void expect_cancelled(const std::string& name) {
    EXPECT_EQ(cancel(name)->state(), v1::Job::CANCELLING);
    EXPECT_EQ(cancel(name)->state(), v1::Job::CANCELLING);  // Idempotent.
    a_.obeys_stop = b_.obeys_stop = true;
    run();
    EXPECT_EQ(state(name), "CANCELLED");
    EXPECT_EQ(free_devices(), 4u);
    EXPECT_EQ(cancel(name)->state(), v1::Job::CANCELLED);
  }
};

TEST_F(Cancel, WhileQueued) {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_resources()->set_wait_for_capacity(true);
  const std::string name = submit(spec);
  EXPECT_EQ(cancel(name)->state(), v1::Job::CANCELLED);
  EXPECT_EQ(cancel(name)->state(), v1::Job::CANCELLED);
  connect();
  run();
  EXPECT_EQ(state(name), "CANCELLED");
}

TEST_F(Cancel, WhileStarting) {
  connect();
  a_.starts = b_.starts = false;
  const std::string name = submit(small_spec(4));
  manager_->tick();
  EXPECT_EQ(state(name), "STARTING");
  EXPECT_EQ(cancel(name)->state(), v1::Job::CANCELLING);
  beat();
  EXPECT_EQ(state(name), "CANCELLING");  // A start may be under way.
  expect_cancelled(name);
  EXPECT_EQ(get(name).placement(0).message(), "stopped before it was started");
}

TEST_F(Cancel, WhileRunning) {
  const std::string name = running();
  a_.obeys_stop = false;
  EXPECT_EQ(cancel(name)->state(), v1::Job::CANCELLING);
  run();
  EXPECT_EQ(state(name), "CANCELLING");  // a's ranks live.
  expect_cancelled(name);
}

TEST_F(Cancel, WhileRestarting) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 139, v1::CRASH, "");
  beat();
  EXPECT_EQ(state(name), "RESTARTING");
  expect_cancelled(name);
}

TEST_F(Cancel, WhileFailingOrOver) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(a_.rank(name, 1, 0), 21, v1::CONFIG, "x");
  beat();
  EXPECT_EQ(cancel(name)->state(), v1::Job::FAILING);  // It is ending already.
  a_.obeys_stop = b_.obeys_stop = true;
  run();
  EXPECT_EQ(state(name), "FAILED");
  EXPECT_EQ(reason(cancel(name).status()), "JOB_TERMINAL");
  EXPECT_EQ(reason(cancel("projects/default/jobs/nobody").status()), "JOB_NOT_FOUND");
}

TEST_F(Cancel, ALostNodeDoesNotBlockTheEnd) {
  const std::string name = running();
  b_.obeys_stop = false;
  EXPECT_TRUE(cancel(name).ok());
  pass_with(a_, seconds(11));
  EXPECT_EQ(state(name), "CANCELLED");
  EXPECT_EQ(get(name).placement(2).state(), v1::RankPlacement::LOST);
}

}  // namespace
}  // namespace telar::server::jobs
