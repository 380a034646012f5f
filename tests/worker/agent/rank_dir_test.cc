#include "worker/agent/rank_dir.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telar::agent {
namespace {
namespace fs = std::filesystem;
using testing::HasSubstr;

v1::RankPlan plan(uint64_t epoch, uint32_t rank) {
  v1::RankPlan plan;
  plan.set_job("projects/default/jobs/j1");
  plan.set_epoch(epoch);
  plan.set_rank(rank);
  plan.set_threads(3);
  return plan;
}

class RankDirTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string folder_;
};

TEST_F(RankDirTest, WhatIsWrittenIsRead) {
  const RankDir directory(folder_ + "/a/1/0");
  EXPECT_FALSE(directory.read_process().has_value());
  EXPECT_FALSE(directory.read_exit());
  ASSERT_TRUE(directory.create(plan(1, 0)).ok());
  EXPECT_EQ(directory.read_plan()->threads(), 3u);
  RankProcess written;
  written.id.start_ticks = 12345678901234;
  written.cgroup = "/cg";
  ASSERT_TRUE(directory.write_process(written).ok());
  const auto process = directory.read_process();
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->id.start_ticks, 12345678901234u);
  EXPECT_EQ(process->cgroup, "/cg");
  ASSERT_TRUE(directory.write_exit({137, "why"}).ok());
  EXPECT_EQ(directory.read_exit().value().exit_code, 137);
  EXPECT_EQ(directory.read_exit().value().message, "why");
  ASSERT_TRUE(directory.write_shipped({5'000'000'000, 7}).ok());
  EXPECT_EQ(directory.read_shipped().log_offset, 5'000'000'000u);
  EXPECT_EQ(directory.read_shipped().event_line, 7u);
}

TEST_F(RankDirTest, DamagedFilesCountAsAbsent) {
  const RankDir directory(folder_);
  for (const char* text : {"", "{", "[]", "{\"pid\": \"x\"}", "\xff"}) {
    for (const char* file : {"/exit.json", "/shipped.json"}) std::ofstream(folder_ + file) << text;
    EXPECT_FALSE(directory.read_exit()) << text;
    EXPECT_EQ(directory.read_shipped().log_offset, 0u) << text;
  }
}

TEST_F(RankDirTest, WishesAreWrittenWhereTheyAreOthers) {
  const RankDir directory(folder_);
  v1::RankWishes wishes;
  wishes.add_trace_steps(40);
  ASSERT_TRUE(directory.write_wishes(wishes).ok());
  EXPECT_EQ(read_file(directory.wishes_path()).value(), "{\"trace_steps\":[\"40\"]}\n");
  const auto written = fs::last_write_time(directory.wishes_path()) - std::chrono::hours(1);
  fs::last_write_time(directory.wishes_path(), written);
  ASSERT_TRUE(directory.write_wishes(wishes).ok());
  EXPECT_EQ(fs::last_write_time(directory.wishes_path()), written);  // The rank need not read it again.
  wishes.add_trace_steps(41);
  ASSERT_TRUE(directory.write_wishes(wishes).ok());
  EXPECT_EQ(read_file(directory.wishes_path()).value(), "{\"trace_steps\":[\"40\",\"41\"]}\n");
}

TEST_F(RankDirTest, AJobIdIsAFolderName) {
  EXPECT_EQ(job_id("projects/default/jobs/ab12").value(), "ab12");
  for (const char* bad : {"", "projects/p/jobs/", "jobs/..", "jobs/.hidden", "jobs/a b"}) {
    EXPECT_FALSE(job_id(bad).ok()) << bad;
  }
}

TEST_F(RankDirTest, AnUnwritableStateDirectoryIsNamed) {
  std::ofstream(folder_ + "/file") << "x";
  const auto state = StateDir::open(folder_ + "/file");
  EXPECT_THAT(std::string(state.status().message()), HasSubstr(folder_ + "/file"));
}

TEST_F(RankDirTest, ScanFindsStartedRanksAndRemovesTheRest) {
  const auto state = StateDir::open(folder_);
  ASSERT_TRUE(state.ok());
  EXPECT_FALSE(StateDir::open(folder_).ok());  // Locked.
  const RankDir started = *state->rank_dir(key_of(plan(2, 1))), unstarted = *state->rank_dir(key_of(plan(2, 0)));
  ASSERT_TRUE(started.create(plan(2, 1)).ok() && unstarted.create(plan(2, 0)).ok());
  ASSERT_TRUE(started.write_exit({0, ""}).ok());
  const auto found = state->scan();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first.rank(), 1u);
  EXPECT_EQ(found[0].second.path(), folder_ + "/ranks/j1/2/1");
  EXPECT_FALSE(fs::exists(unstarted.path()));
  close(state->lock_file());
}

TEST_F(RankDirTest, RetiringKeepsTheNewest) {
  const auto state = StateDir::open(folder_);
  ASSERT_TRUE(state.ok());
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    const RankDir directory = *state->rank_dir(key_of(plan(epoch, 0)));
    ASSERT_TRUE(directory.create(plan(epoch, 0)).ok());
    state->retire(key_of(plan(epoch, 0)), directory, 2);
  }
  EXPECT_FALSE(fs::exists(folder_ + "/ranks/j1"));
  std::vector<std::string> kept;
  for (const auto& entry : fs::directory_iterator(folder_ + "/finished")) kept.push_back(entry.path().filename());
  EXPECT_THAT(kept, testing::UnorderedElementsAre("j1.4.0", "j1.5.0"));
  close(state->lock_file());
}

TEST_F(RankDirTest, RetiringKeepsTheNewestThoughTheClockWasSetBack) {
  const auto state = StateDir::open(folder_);
  ASSERT_TRUE(state.ok());
  const auto later = fs::file_time_type::clock::now() + std::chrono::hours(5);
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    const RankDir directory = *state->rank_dir(key_of(plan(epoch, 0)));
    ASSERT_TRUE(directory.create(plan(epoch, 0)).ok());
    state->retire(key_of(plan(epoch, 0)), directory, 2);
    if (epoch == 1) fs::last_write_time(folder_ + "/finished/j1.1.0", later);  // The first was retired before it.
  }
  std::vector<std::string> kept;
  for (const auto& entry : fs::directory_iterator(folder_ + "/finished")) kept.push_back(entry.path().filename());
  EXPECT_THAT(kept, testing::UnorderedElementsAre("j1.4.0", "j1.5.0"));
  close(state->lock_file());
}

}  // namespace
}  // namespace telar::agent
