#include "worker/agent/spawner.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telar::agent {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

bool eventually(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + 20s; !condition();) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

class SpawnerTest : public testing::Test {
 protected:
  void SetUp() override {
    // Longer than a socket's path may be.
    std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    state_.emplace(StateDir::open(root_ + "/" + std::string(120, 'x')).value());
    spawner_ = Spawner::connect_or_fork(*state_, 200ms).value();
  }
  void TearDown() override {
    spawner_.reset();
    for (const std::string& path : cgroups_) EXPECT_TRUE(eventually([&] { return rmdir(path.c_str()) == 0; })) << path;
    close(state_->lock_file());
    std::filesystem::remove_all(root_);
  }
  RankDir rank_dir(uint32_t rank) {
    v1::RankPlan plan;
    plan.set_job("jobs/j");
    plan.set_rank(rank);
    RankDir directory = state_->rank_dir(key_of(plan)).value();
    EXPECT_TRUE(directory.create(plan).ok());
    return directory;
  }
  absl::StatusOr<RankProcess> start(const RankDir& directory, const std::vector<std::string>& arguments,
                                    const std::vector<std::string>& environment) {
    auto process = spawner_->start(directory, arguments, environment);
    if (process.ok() && !process->cgroup.empty()) cgroups_.push_back(process->cgroup);
    return process;
  }
  static std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }
  std::optional<RankExit> wait_exit(const RankDir& directory) {
    eventually([&] { return directory.read_exit().has_value(); });
    return directory.read_exit();
  }

  std::string root_;
  std::optional<StateDir> state_;
  std::unique_ptr<Spawner> spawner_;
  std::vector<std::string> cgroups_;
};

TEST_F(SpawnerTest, StartsReapsAndRecords) {
  const RankDir directory = rank_dir(0);
  const auto process = start(directory, shell("echo out; echo err >&2; echo $WORD; cat; exit 42"), {"WORD=w"});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(process->id.boot_id, boot_id());
  EXPECT_EQ(wait_exit(directory).value().exit_code, 42);
  EXPECT_EQ(read_file(directory.log_path()).value(), "out\nerr\nw\n");
}

TEST_F(SpawnerTest, ASignalIs128More) {
  const RankDir directory = rank_dir(0);
  const auto process = start(directory, shell("kill -SEGV $$"), {});
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(wait_exit(directory).value().exit_code, 139);
}

TEST_F(SpawnerTest, SyncAnswersAfterTheDeadAreRecorded) {
  for (uint32_t i = 0; i < 20; ++i) {
    const RankDir directory = rank_dir(i);
    const auto process = start(directory, shell("exit 1"), {});
    ASSERT_TRUE(process.ok());
    ASSERT_TRUE(eventually([&] { return !alive(process->id); }));
    ASSERT_TRUE(spawner_->sync().ok());
    EXPECT_TRUE(directory.read_exit()) << i;
  }
}

TEST_F(SpawnerTest, WhatCannotStartLeavesNoProcess) {
  const RankDir directory = rank_dir(0);
  const auto process = start(directory, {root_ + "/absent"}, {});
  EXPECT_EQ(process.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(process.status().message()), HasSubstr(root_ + "/absent: No such file or directory"));
  EXPECT_FALSE(directory.read_process());
  EXPECT_TRUE(spawner_->sync().ok());
}

TEST_F(SpawnerTest, ANewDaemonFindsTheOldSpawnerAndItEndsWhenIdle) {
  const RankDir directory = rank_dir(0);
  const auto process = start(directory, shell("sleep 60"), {});
  ASSERT_TRUE(process.ok());
  spawner_.reset();
  std::this_thread::sleep_for(400ms);  // Longer than idle: its child keeps it.
  auto again = Spawner::connect_or_fork(*state_, 200ms);
  ASSERT_TRUE(again.ok());
  kill(-process->id.pid, SIGTERM);
  EXPECT_EQ(wait_exit(directory).value().exit_code, 143);  // Only its parent can know the code.
}

TEST_F(SpawnerTest, FamilyIsFoundThroughTheMarkerAcrossSessions) {
  const RankDir directory = rank_dir(0);
  const auto process =
      start(directory, shell("setsid sh -c 'sleep 61 & sleep 62' & echo up; wait"), {directory.marker()});
  ASSERT_TRUE(process.ok());
  const ProcessFamily family{process->id, directory.marker(), process->cgroup};
  ASSERT_TRUE(eventually([&] { return members(family).size() == 4; }));
  kill(process->id.pid, SIGKILL);
  ASSERT_TRUE(eventually([&] { return !alive(process->id); }));
  EXPECT_EQ(members(family).size(), 3u);
  EXPECT_TRUE(eventually([&] { return kill_members(family).empty(); }));
}

TEST_F(SpawnerTest, LookingAtProcessesSurvivesThatTheyEnd) {
  const RankDir directory = rank_dir(0);
  const auto process = start(directory, shell("for i in $(seq 400); do /bin/true & done; wait"), {directory.marker()});
  ASSERT_TRUE(process.ok());
  const ProcessFamily family{process->id, directory.marker(), process->cgroup};
  size_t most = 0;
  while (alive(process->id)) most = std::max(most, members(family).size());
  EXPECT_GT(most, 0u);
  EXPECT_EQ(wait_exit(directory).value().exit_code, 0);
}

}  // namespace
}  // namespace telar::agent
