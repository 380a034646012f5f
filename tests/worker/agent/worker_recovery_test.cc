// What one process's death must not change for the others.
#include <gmock/gmock.h>

#include "tests/worker/agent/worker_fixture.h"

namespace telar::agent {
namespace {

using testing::HasSubstr;

class WorkerRecoveryTest : public WorkerTest {};

int spawner_of(int rank_pid) {
  const std::string stat = read_file("/proc/" + std::to_string(rank_pid) + "/stat").value_or("");
  int parent = 0;
  if (const size_t end = stat.rfind(')'); end != std::string::npos) sscanf(stat.c_str() + end + 1, " %*c %d", &parent);
  return parent;
}

TEST_F(WorkerRecoveryTest, AKilledDaemonComesBackToItsRunningRanks) {
  start_worker();
  coordinator_.assign({assignment("started run")});
  ASSERT_TRUE(wait_events(20)) << log();
  const int rank_pid = RankDir(rank_path()).read_process().value().id.pid;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(end_worker(SIGKILL), 137);
    EXPECT_TRUE(runs(rank_pid));
    const size_t before = coordinator_.locked([](const Fake& fake) { return fake.output(1).events.size(); });
    start_worker();
    ASSERT_TRUE(wait_events(before + 20)) << log();
    ASSERT_TRUE(coordinator_.wait([&](const Fake& fake) {
      return fake.registrations().size() == static_cast<size_t>(round) + 2 &&
             fake.heartbeats().back().incarnation() == fake.registrations().back().incarnation();
    })) << log();
    coordinator_.locked([&](const Fake& fake) {
      ASSERT_NE(fake.status(1), nullptr);
      EXPECT_EQ(fake.status(1)->state(), v1::RankPlacement::RUNNING);
      EXPECT_EQ(fake.status(1)->pid(), rank_pid);
    });
  }
  coordinator_.assign({assignment("started run", 1, 0, v1::Assignment::STOP)});
  EXPECT_EQ(wait_over().exit_code(), 10) << log();
  expect_output_is_whole();
}

TEST_F(WorkerRecoveryTest, TheExitOfARankWithoutADaemonIsSeenLater) {
  start_worker();
  coordinator_.assign({assignment("started run", 1, 0), assignment("bytes:300000 hang", 1, 1)});
  ASSERT_TRUE(wait_events(3) && wait_running(1, 1)) << log();
  const int first = RankDir(rank_path(1, 0)).read_process().value().id.pid;
  const int second = RankDir(rank_path(1, 1)).read_process().value().id.pid;
  ASSERT_EQ(end_worker(SIGKILL), 137);
  kill(first, SIGTERM);
  kill(second, SIGABRT);
  ASSERT_TRUE(eventually([&] { return !runs(first) && !runs(second); }));
  start_worker();
  EXPECT_EQ(wait_over(1, 0).exit_code(), 10) << log();
  const v1::RankStatus crashed = wait_over(1, 1);
  EXPECT_EQ(crashed.exit_code(), 134);
  EXPECT_EQ(crashed.failure_class(), v1::CRASH);
  expect_output_is_whole(1, 0);
  expect_output_is_whole(1, 1);
}

TEST_F(WorkerRecoveryTest, SigtermEndsTheDaemonOnly) {
  start_worker();
  coordinator_.assign({assignment("started run")});
  ASSERT_TRUE(wait_events(3)) << log();
  EXPECT_EQ(end_worker(SIGTERM), 0);
  EXPECT_TRUE(runs(RankDir(rank_path()).read_process().value().id.pid));
}

TEST_F(WorkerRecoveryTest, TheCoordinatorsAbsenceDoesNotTouchARank) {
  start_worker();
  coordinator_.assign({assignment("started run")});
  ASSERT_TRUE(wait_events(10)) << log();
  const int rank_pid = RankDir(rank_path()).read_process().value().id.pid;
  const size_t before = coordinator_.locked([](const Fake& fake) { return fake.output(1).events.size(); });
  coordinator_.stop();
  // Away for as long as the rank takes for another 500 steps, and at least its lease of 2 s.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  ASSERT_TRUE(eventually([&] {
    const std::string lines = read_file(rank_path() + "/events.jsonl").value_or("");
    return std::chrono::steady_clock::now() > until &&
           static_cast<size_t>(std::count(lines.begin(), lines.end(), '\n')) > before + 500;
  }));
  EXPECT_TRUE(runs(rank_pid));
  coordinator_.start();
  ASSERT_TRUE(wait_events(before + 500)) << log();
  coordinator_.assign({assignment("started run", 1, 0, v1::Assignment::STOP)});
  const v1::RankStatus status = wait_over();
  EXPECT_EQ(status.pid(), rank_pid);
  EXPECT_EQ(status.exit_code(), 10) << log();
  expect_output_is_whole();
}

TEST_F(WorkerRecoveryTest, ARankThatEndsWhileTheCoordinatorIsAwayIsReportedLater) {
  start_worker();
  coordinator_.assign({assignment("started run")});
  ASSERT_TRUE(wait_events(10)) << log();
  const int rank_pid = RankDir(rank_path()).read_process().value().id.pid;
  coordinator_.stop();
  kill(rank_pid, SIGTERM);
  ASSERT_TRUE(eventually([&] { return !runs(rank_pid); }));
  EXPECT_EQ(end_worker(SIGKILL), 137);
  start_worker();
  coordinator_.start();
  EXPECT_EQ(wait_over().exit_code(), 10) << log();
  expect_output_is_whole();
}

TEST_F(WorkerRecoveryTest, WithoutItsSpawnerTheDaemonEndsAndTheNextOneTakesOver) {
  start_worker();
  coordinator_.assign({assignment("started run", 1, 0), assignment("hang", 1, 1)});
  ASSERT_TRUE(wait_events(3) && wait_running(1, 1)) << log();
  const int first = RankDir(rank_path(1, 0)).read_process().value().id.pid;
  const int second = RankDir(rank_path(1, 1)).read_process().value().id.pid;
  kill(spawner_of(first), SIGKILL);
  EXPECT_EQ(wait_worker(), 5) << log();
  ASSERT_TRUE(runs(first) && runs(second));
  start_worker();
  ASSERT_TRUE(wait_running(1, 1)) << log();
  kill(second, SIGKILL);
  const v1::RankStatus unseen = wait_over(1, 1);
  EXPECT_EQ(unseen.failure_class(), v1::CRASH);
  EXPECT_THAT(unseen.message(), HasSubstr("unseen"));
  kill(first, SIGTERM);
  EXPECT_EQ(wait_over(1, 0).exit_code(), 10) << log();  // Its events said so.
  expect_output_is_whole();
}

TEST_F(WorkerRecoveryTest, ADirectoryOfAnotherBootIsADeadRank) {
  v1::RankPlan plan = assignment("hang").plan();
  const RankDir directory(rank_path());
  ASSERT_TRUE(directory.create(plan).ok());
  ProcessId self = *identify(getpid());  // A living process of that number: only the boot tells them apart.
  self.boot_id = "another boot";
  ASSERT_TRUE(directory.write_process({self, ""}).ok());
  coordinator_.assign({assignment("hang")});
  start_worker();
  const v1::RankStatus status = wait_over();
  EXPECT_EQ(status.failure_class(), v1::NODE_LOST) << log();  // No fault of the job.
  EXPECT_EQ(status.message(), "its machine was started again");
}

}  // namespace
}  // namespace telar::agent
