// A coordinator that was killed and came back: nothing acknowledged is lost, nothing that runs is disturbed.
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;
using tests::FakeWorker;
using tests::small_spec;

class Recovery : public tests::ManagerTest {};

TEST_F(Recovery, RunningJobsGoOn) {
  const std::string name = running();
  const v1::Job before = get(name);
  open();
  EXPECT_EQ(get(name).SerializeAsString(), before.SerializeAsString());
  manager_->tick();
  EXPECT_EQ(state(name), "RUNNING");  // A lease to come back.
  EXPECT_FALSE(a_.beat(*manager_).ok());
  connect();
  run();
  EXPECT_EQ(get(name).epoch(), 1u);
  EXPECT_EQ(get(name).restarts() + get(name).node_restarts(), 0u);
  EXPECT_TRUE(a_.has(name, 1, 0));  // Never stopped.
  EXPECT_EQ(free_devices(), 0u);
  a_.finish_all();
  b_.finish_all();
  run();
  EXPECT_EQ(state(name), "SUCCEEDED");
}

TEST_F(Recovery, WhoDoesNotComeBackIsLost) {
  const std::string name = running(small_spec(2));
  FakeWorker& other = other_than(worker_of(name));
  open();
  ASSERT_TRUE(other.register_at(*manager_).ok());
  pass_with(other, seconds(9));
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 1u);
  pass_with(other, seconds(1));
  EXPECT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(get(name).node_restarts(), 1u);
}

TEST_F(Recovery, AStartedJobIsNotStartedTwice) {
  connect();
  const std::string name = submit(small_spec(4));
  manager_->tick();
  ASSERT_EQ(state(name), "STARTING");
  open();
  connect();
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 1u);
}

TEST_F(Recovery, ACancelAskedBeforeCompletes) {
  const std::string name = running();
  EXPECT_TRUE(cancel(name, "c1").ok());
  open();
  EXPECT_EQ(state(name), "CANCELLING");
  connect();
  run();
  EXPECT_EQ(state(name), "CANCELLED");
  EXPECT_EQ(cancel(name, "c1")->state(), v1::Job::CANCELLING);  // As it was answered first.
}

TEST_F(Recovery, ARestartUnderWayCompletesAndIsPaidOnce) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  FakeWorker::die(b_.rank(name, 1, 3), 139, v1::CRASH, "killed by signal 11");
  beat();
  ASSERT_EQ(state(name), "RESTARTING");
  open();
  a_.obeys_stop = b_.obeys_stop = true;
  connect();
  beat();
  EXPECT_EQ(state(name), "QUEUED");
  open();
  EXPECT_EQ(get(name).restarts(), 1u);
  connect();
  pass(seconds(1));
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 2u);
}

TEST_F(Recovery, TheQueueKeepsItsOrder) {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_resources()->set_wait_for_capacity(true);
  const std::string first = submit(spec);
  const std::string second = submit(spec);
  open();
  connect();
  run();
  EXPECT_EQ(state(first), "RUNNING");
  EXPECT_EQ(state(second), "QUEUED");
  EXPECT_EQ(get(second).message(), "needs 4 CPU devices; 0 free of 4");
}

}  // namespace
}  // namespace telar::server::jobs
