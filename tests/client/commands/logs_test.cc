#include <thread>

#include "client/commands/exit_codes.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

class LogsTest : public CommandTest {
 protected:
  LogsTest() {
    for (int i = 0; i < 400; ++i) first_ += static_cast<char>(i * 37 % 256);  // Any bytes, NUL and '\r' too.
    second_ = "epoch two\nwith no newline at its end";
    coordinator.service.logs = {{1, first_}, {2, second_}};
    add_job("demo-x1", v1::Job::SUCCEEDED).set_epoch(2);
  }
  std::string first_, second_;
};

TEST_F(LogsTest, CopiesEveryEpochByteForByte) {
  EXPECT_EQ(logs(context, {.job = "demo-x1", .rank = 3}), kOk);
  EXPECT_EQ(out.str(), first_ + second_);
  EXPECT_EQ(coordinator.service.reads[0].rank(), 3u);
  EXPECT_FALSE(coordinator.service.reads[0].follow());
}

TEST_F(LogsTest, ResumesByOffsetAndGoesOnToTheNextEpoch) {
  coordinator.service.break_streams_after = {5, 0, 9, 1};
  EXPECT_EQ(logs(context, {.job = "demo-x1", .follow = true}), kOk);
  EXPECT_EQ(out.str(), first_ + second_);
  ASSERT_GE(coordinator.service.reads.size(), 4u);
  EXPECT_EQ(coordinator.service.reads[1].epoch(), 1u);
  EXPECT_EQ(coordinator.service.reads[1].offset(), 35u);
  EXPECT_EQ(coordinator.service.reads[3].offset(), 35u + 63u);
  EXPECT_NE(err.str().find("connection lost, retrying"), std::string::npos);
}

TEST_F(LogsTest, BreaksAnywhereNeverLoseOrRepeatAByte) {
  for (const size_t at : {0, 1, 30, 56, 57, 58, 59, 62, 63, 64}) {  // 58 chunks of the first epoch, 6 of the second.
    out.str("");
    coordinator.service.break_streams_after = {at};
    EXPECT_EQ(logs(context, {.job = "demo-x1", .follow = true}), kOk);
    ASSERT_EQ(out.str(), first_ + second_) << "broken after " << at << " chunks";
  }
}

TEST_F(LogsTest, SaysInTheLogsPlaceWhatIsMissing) {
  coordinator.service.logs = {{1, "abc\ndefghijklmnopqrstuvwxyz\nend\n"}};
  coordinator.service.lost = {6, 20};
  EXPECT_EQ(logs(context, {.job = "demo-x1", .epoch = 1}), kOk);
  EXPECT_EQ(out.str(), "abc\nde\n[telar: 14 bytes of this log are missing here]\ntuvwxyz\nend\n");
  out.str("");
  EXPECT_EQ(logs(context, {.job = "demo-x1", .epoch = 1, .offset = 10}), kOk);
  EXPECT_EQ(out.str(), "[telar: 10 bytes of this log are missing here]\ntuvwxyz\nend\n");
}

TEST_F(LogsTest, OneEpochFromAnOffset) {
  EXPECT_EQ(logs(context, {.job = "demo-x1", .epoch = 2, .offset = 6}), kOk);
  EXPECT_EQ(out.str(), second_.substr(6));
  out.str("");
  EXPECT_EQ(logs(context, {.job = "demo-x1", .offset = 390}), kOk);
  EXPECT_EQ(out.str(), first_.substr(390) + second_);
}

TEST_F(LogsTest, FollowEndsWithTheCodeOfTheJob) {
  coordinator.service.jobs.begin()->second.set_state(v1::Job::FAILED);
  EXPECT_EQ(logs(context, {.job = "demo-x1", .follow = true}), kJobFailed);
  EXPECT_EQ(logs(context, {.job = "demo-x1"}), kOk) << "only a follower mirrors the job";
}

TEST_F(LogsTest, InterruptDetaches) {
  coordinator.service.jobs.begin()->second.set_state(v1::Job::RUNNING);
  coordinator.service.hold_streams = true;
  std::thread user([&] {
    coordinator.service.wait_for_streams(1);
    while (!interrupt.trigger()) std::this_thread::yield();
  });
  EXPECT_EQ(logs(context, {.job = "demo-x1", .follow = true}), kOk);
  user.join();
  EXPECT_NE(err.str().find("detached; job goes on"), std::string::npos);
}

TEST_F(LogsTest, StopsWhenNobodyReads) {
  out.setstate(std::ios::badbit);
  EXPECT_EQ(logs(context, {.job = "demo-x1", .follow = true}), kOk);
  EXPECT_EQ(coordinator.service.reads.size(), 1u);
}

}  // namespace
}  // namespace telar::client
