#include "worker/agent/pace_book.h"

#include <stdlib.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "tests/fakes/fake_clock.h"
#include "worker/flight/recorder.h"

namespace telar::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PaceBookTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    book_.add(key_, folder_ + "/flight");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void step(double taken, std::optional<double> peers = std::nullopt) {
    v1::RankEvent event;
    event.mutable_step()->set_step(++step_);
    event.mutable_step()->set_seconds(taken);
    if (peers) {
      v1::PhaseTime& phase = *event.mutable_step()->add_phases();
      phase.set_phase("peers");
      phase.set_seconds(*peers);
    }
    book_.observe(key_, event);
  }
  v1::RankPace pace() { return book_.pace(key_).value(); }

  const RankKey key_{"projects/default/jobs/j1", 1, 0};
  fakes::FakeClock clock_;
  PaceBook book_{&clock_};
  std::string folder_;
  uint64_t step_ = 0;
};

TEST_F(PaceBookTest, SilenceIsSinceTheLastStepOrTheStart) {
  clock_.advance(seconds(7));
  EXPECT_DOUBLE_EQ(pace().silent_seconds(), 7);
  EXPECT_EQ(pace().step(), 0u);
  step(2);
  EXPECT_DOUBLE_EQ(pace().silent_seconds(), 0);
  clock_.advance(milliseconds(1500));
  EXPECT_DOUBLE_EQ(pace().silent_seconds(), 1.5);
  EXPECT_EQ(pace().step(), 1u);
}

TEST_F(PaceBookTest, WhatTheFlightFileShowsIsNoSilence) {
  auto recorder = flight::Recorder::create(folder_ + "/flight", {{"world.0", {0, 1}}}).value();
  recorder->set_activity(flight::Activity::kEvaluating);
  book_.look();
  EXPECT_EQ(pace().activity(), v1::RankPace::EVALUATING);
  clock_.advance(seconds(30));
  book_.look();
  EXPECT_DOUBLE_EQ(pace().silent_seconds(), 30);
  const uint64_t call = recorder->begin(0, 0, 8, 0, flight::State::kRunning);
  clock_.advance(seconds(1));
  book_.look();
  EXPECT_DOUBLE_EQ(pace().silent_seconds(), 31);  // To wait is not to get on.
  recorder->done(call);
  clock_.advance(milliseconds(100));
  book_.look();  // Too soon for another look.
  EXPECT_DOUBLE_EQ(pace().silent_seconds(), 31.1);
  clock_.advance(milliseconds(400));
  book_.look();
  EXPECT_DOUBLE_EQ(pace().silent_seconds(), 0);
}

TEST_F(PaceBookTest, MeansAreOfTwentyStepsAndTheSlowestOfAHundred) {
  step(9, 1);
  for (int i = 0; i < 18; ++i) step(2, 0.5);
  EXPECT_DOUBLE_EQ(pace().step_seconds(), 0);  // Not that many yet.
  step(2, 0.5);
  EXPECT_DOUBLE_EQ(pace().step_seconds(), (9 + 19 * 2) / 20.0);
  EXPECT_DOUBLE_EQ(pace().own_seconds(), (8 + 19 * 1.5) / 20.0);
  step(2, 0.5);
  EXPECT_DOUBLE_EQ(pace().step_seconds(), 2);
  EXPECT_DOUBLE_EQ(pace().own_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(pace().slowest_seconds(), 9);
  for (int i = 0; i < 79; ++i) step(2, 0.5);
  EXPECT_DOUBLE_EQ(pace().slowest_seconds(), 9);  // It is the hundredth back.
  step(2, 0.5);
  EXPECT_DOUBLE_EQ(pace().slowest_seconds(), 2);
  step(2);  // One step of which nobody knows.
  EXPECT_DOUBLE_EQ(pace().own_seconds(), 1.5);
}

// As on GPUs, where one step in many is looked at.
TEST_F(PaceBookTest, FewStepsMayTellWhatIsTheRanksOwn) {
  for (int i = 0; i < 20; ++i) step(2);
  EXPECT_DOUBLE_EQ(pace().own_seconds(), 0);
  step(2, 0.5);
  for (int i = 0; i < 99; ++i) step(2);
  EXPECT_DOUBLE_EQ(pace().own_seconds(), 1.5);
  step(2);
  EXPECT_DOUBLE_EQ(pace().own_seconds(), 0) << "it is too long ago";
}

TEST_F(PaceBookTest, KnowsOnlyWhoWasAdded) {
  const RankKey other{key_.job, 2, 0};
  v1::RankEvent event;
  event.mutable_step()->set_step(3);
  book_.observe(other, event);
  EXPECT_FALSE(book_.pace(other));
  book_.remove(key_);
  EXPECT_FALSE(book_.pace(key_));
}

}  // namespace
}  // namespace telar::agent
