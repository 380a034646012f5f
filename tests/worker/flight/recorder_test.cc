// What is written down is what is read, whatever has become of the process that wrote it.
#include "worker/flight/recorder.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "worker/flight/reader.h"

namespace telar::flight {
namespace {

enum Op : uint8_t { kAllReduce = 0, kSend = 4 };

class FlightFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/flight";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Recorder> create() {
    auto made = Recorder::create(path_, {{"world.0", {0, 1, 2, 3}}, {"tensor.2", {2, 3}}});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  std::vector<Call> calls(size_t most = 64) {
    auto read = read_calls(path_, most);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? *read : std::vector<Call>();
  }

  std::string folder_, path_;
};

TEST_F(FlightFile, TellsEachCall) {
  const auto recorder = create();
  recorder->done(recorder->begin(0, kAllReduce, 4096, 7, State::kRunning));
  recorder->begin(1, kSend, 64, 7, State::kQueued);
  recorder->begin(0, kAllReduce, 8, 8, State::kRunning);
  const auto read = calls();
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].group, "world.0");
  EXPECT_EQ(read[0].ranks, (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(read[0].sequence, 1u);
  EXPECT_EQ(read[0].op, "all_reduce");
  EXPECT_EQ(read[0].bytes, 4096u);
  EXPECT_EQ(read[0].step, 7u);
  EXPECT_EQ(read[0].state, State::kDone);
  EXPECT_EQ(read[1].group, "tensor.2");
  EXPECT_EQ(read[1].ranks, (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(read[1].op, "send");
  EXPECT_EQ(read[1].state, State::kQueued);
  EXPECT_EQ(read[2].sequence, 2u);  // The second of its group.
  EXPECT_EQ(read[2].state, State::kRunning);
  EXPECT_GE(read[2].seconds, 0);
  EXPECT_LT(read[2].seconds, 60);
}

TEST_F(FlightFile, CallsOfAFinishedDeviceAreDone) {
  const auto recorder = create();
  recorder->begin(0, kAllReduce, 4, 1, State::kQueued);
  const uint64_t next = recorder->next();
  recorder->begin(0, kAllReduce, 4, 2, State::kQueued);
  recorder->done_before(next);
  const auto read = calls();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].state, State::kDone);
  EXPECT_EQ(read[1].state, State::kQueued);
}

// The ring goes round, and a reader takes only so many: of each group the last call stays, and the oldest open one.
TEST_F(FlightFile, WhatMattersOfEachGroupIsThere) {
  const auto recorder = create();
  for (int i = 0; i < 10'000; ++i) recorder->done(recorder->begin(0, kAllReduce, 4, 1, State::kRunning));
  recorder->done(recorder->begin(1, kSend, 4, 2, State::kRunning));
  const uint64_t open = recorder->begin(0, kAllReduce, 4, 2, State::kQueued);
  for (int i = 0; i < 2'000; ++i) recorder->begin(0, kAllReduce, 4, 2, State::kQueued);
  const auto read = calls(8);
  ASSERT_EQ(read.size(), 10u);
  EXPECT_EQ(read[0].group, "tensor.2");
  EXPECT_EQ(read[0].state, State::kDone);
  EXPECT_EQ(read[1].sequence, 10'001u);  // `open`.
  EXPECT_EQ(read[1].state, State::kQueued);
  EXPECT_EQ(read.back().sequence, 12'001u);
  for (size_t i = 3; i < read.size(); ++i) EXPECT_EQ(read[i].sequence, read[i - 1].sequence + 1);
  for (int i = 0; i < 5'000; ++i) recorder->done(recorder->begin(0, kAllReduce, 4, 3, State::kRunning));
  recorder->done(open);  // Long overwritten: of no effect on who has its place now.
  EXPECT_EQ(calls(4096).size(), kEntries);
}

TEST_F(FlightFile, OutlivesAKilledProcess) {
  const pid_t child = fork();
  if (child == 0) {
    const auto recorder = create();
    recorder->set_activity(Activity::kTraining);
    recorder->begin(0, kAllReduce, 12, 3, State::kRunning);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const auto read = calls();
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].state, State::kRunning);
  EXPECT_EQ(read[0].bytes, 12u);
  EXPECT_EQ(glance(path_)->activity, Activity::kTraining);
}

TEST_F(FlightFile, IsReadWhileItsProcessIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    const auto recorder = create();
    recorder->begin(1, kSend, 5, 9, State::kRunning);
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto before = glance(path_);
  const auto read = calls();
  const auto after = glance(path_);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].step, 9u);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(before->beats, after->beats);
}

TEST_F(FlightFile, BeatsGrowWithAllThatGetsTheRankOn) {
  const auto recorder = create();
  uint64_t beats = glance(path_)->beats;
  const auto grew = [&] {
    const uint64_t before = beats;
    beats = glance(path_)->beats;
    return beats > before;
  };
  EXPECT_FALSE(grew());
  const uint64_t number = recorder->begin(0, kAllReduce, 1, 1, State::kRunning);
  EXPECT_FALSE(grew());  // Whoever waits for others gets nowhere.
  recorder->done(number);
  EXPECT_TRUE(grew());
  recorder->done_before(recorder->next());
  EXPECT_TRUE(grew());
  recorder->set_activity(Activity::kSaving);
  EXPECT_TRUE(grew());
  EXPECT_EQ(glance(path_)->activity, Activity::kSaving);
}

TEST_F(FlightFile, IsMadeAnewByTheNextProcess) {
  create()->begin(0, kAllReduce, 1, 1, State::kRunning);
  const auto recorder = create();
  EXPECT_TRUE(calls().empty());
  recorder->begin(0, kAllReduce, 1, 1, State::kRunning);
  EXPECT_EQ(calls().size(), 1u);
}

TEST_F(FlightFile, RefusesWhatIsNoneOfItsOwn) {
  EXPECT_FALSE(glance(path_));
  EXPECT_EQ(read_calls(path_, 8).status().code(), absl::StatusCode::kNotFound);
  create()->begin(0, kAllReduce, 1, 1, State::kRunning);
  const auto whole = std::filesystem::file_size(path_);
  for (const uintmax_t size : {uintmax_t{0}, uintmax_t{10}, uintmax_t{sizeof(Header)}, whole - 1}) {
    const std::string cut = folder_ + "/cut";
    std::filesystem::copy_file(path_, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, size);
    EXPECT_EQ(read_calls(cut, 8).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  std::fstream(path_, std::ios::in | std::ios::out).write("foreign!", 8);
  EXPECT_EQ(read_calls(path_, 8).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(glance(path_));
  EXPECT_EQ(Recorder::create(folder_ + "/none/flight", {}).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace telar::flight
