// What a worker tells of a rank whose gang hangs.
#include "worker/agent/flight_reporter.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>

#include "worker/agent/process.h"
#include "worker/flight/recorder.h"

namespace telar::agent {
namespace {

using testing::HasSubstr;

class FlightReport : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }
  // A rank that is in its second call, and stops itself there if it shall.
  void start(bool stops) {
    child_ = fork();
    if (child_ == 0) {
      const auto recorder = flight::Recorder::create(folder_ + "/flight", {{"shard.0", {0, 1}}});
      (*recorder)->done((*recorder)->begin(0, 0, 64, 1, flight::State::kRunning));
      (*recorder)->begin(0, 2, 128, 2, flight::State::kRunning);
      raise(SIGSTOP);
      while (true) pause();
    }
    int status = 0;
    ASSERT_EQ(waitpid(child_, &status, WUNTRACED), child_);
    ASSERT_TRUE(WIFSTOPPED(status));
    if (!stops) {
      kill(child_, SIGCONT);
      ASSERT_EQ(waitpid(child_, &status, WCONTINUED), child_);
    }
    ASSERT_TRUE(directory().write_process({identify(child_).value(), ""}).ok());
  }
  RankDir directory() const { return RankDir(folder_); }

  std::string folder_;
  int child_ = 0;
};

TEST_F(FlightReport, TellsTheCallsAndThatTheProcessIsStopped) {
  start(/*stops=*/true);
  const v1::FlightRecord record = make_flight_record(directory());
  EXPECT_EQ(record.process(), "stopped");
  EXPECT_THAT(record.stacks(), HasSubstr(" T "));
  ASSERT_EQ(record.entries_size(), 2);
  EXPECT_EQ(record.entries(0).state(), v1::FlightEntry::DONE);
  EXPECT_EQ(record.entries(1).group(), "shard.0");
  EXPECT_EQ(record.entries(1).op(), "reduce_scatter");
  EXPECT_EQ(record.entries(1).sequence(), 2u);
  EXPECT_EQ(record.entries(1).bytes(), 128u);
  EXPECT_EQ(record.entries(1).step(), 2u);
  EXPECT_EQ(record.entries(1).state(), v1::FlightEntry::RUNNING);
  EXPECT_EQ(record.entries(0).ranks_size(), 2);
  EXPECT_EQ(record.entries(1).ranks_size(), 0);  // Of the same group.
}

TEST_F(FlightReport, TellsOfAProcessThatRuns) {
  start(/*stops=*/false);
  EXPECT_THAT(make_flight_record(directory()).process(), testing::AnyOf("sleeping", "running"));
}

TEST_F(FlightReport, TellsThatThereIsNoProcess) {
  start(/*stops=*/true);
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  child_ = 0;
  const v1::FlightRecord record = make_flight_record(directory());
  EXPECT_EQ(record.process(), "gone");
  EXPECT_EQ(record.entries_size(), 2);  // What it did last is still there.
}

TEST_F(FlightReport, WithoutAFileThereAreNoCalls) { EXPECT_EQ(make_flight_record(directory()).entries_size(), 0); }

}  // namespace
}  // namespace telar::agent
