#include "server/jobs/goodput.h"

#include <gtest/gtest.h>

#include "server/cluster/times.h"
#include "server/jobs/progress.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;

class GoodputTest : public testing::Test {
 protected:
  GoodputTest() {
    *record_.mutable_job()->mutable_create_time() = cluster::to_timestamp(now_);
    record_.mutable_job()->set_state(v1::Job::QUEUED);
  }
  void after(int time, v1::Job::State next) {
    now_ += seconds(time);
    settle_state(record_, now_);
    record_.mutable_job()->set_state(next);
    if (next == v1::Job::STARTING) record_.mutable_job()->set_epoch(record_.job().epoch() + 1);
  }
  void started(uint64_t step) {
    v1::RankEvent event;
    event.mutable_started()->set_start_step(step);
    fold_event(record_, event);
  }
  void step(uint64_t number, double taken) {
    v1::RankEvent event;
    event.mutable_step()->set_step(number);
    event.mutable_step()->set_seconds(taken);
    fold_event(record_, event);
  }
  void saved(double stall) {
    v1::RankEvent event;
    event.mutable_checkpoint()->set_state(v1::CheckpointReport::DURABLE);
    event.mutable_checkpoint()->set_stall_seconds(stall);
    fold_event(record_, event);
  }
  v1::Goodput goodput(int later = 0) { return goodput_of(record_, now_ + seconds(later)); }
  static double sum(const v1::Goodput& part) {
    return part.queued_seconds() + part.starting_seconds() + part.productive_seconds() + part.lost_seconds() +
           part.stalled_seconds() + part.recovering_seconds() + part.ending_seconds();
  }

  JobRecord record_;
  Clock::Wall now_{seconds(1'700'000'000)};
};

TEST_F(GoodputTest, EachSecondOfALifeIsSomewhere) {
  EXPECT_DOUBLE_EQ(goodput(4).queued_seconds(), 4) << "as it goes on";
  after(10, v1::Job::STARTING);
  after(5, v1::Job::RUNNING);
  started(0);
  for (uint64_t i = 1; i <= 20; ++i) step(i, 2);
  saved(1.5);
  EXPECT_DOUBLE_EQ(sum(goodput(40)), 55);
  after(40, v1::Job::RESTARTING);
  after(3, v1::Job::QUEUED);
  after(7, v1::Job::STARTING);
  after(2, v1::Job::RUNNING);
  started(15);
  EXPECT_DOUBLE_EQ(goodput().lost_seconds(), 10) << "five steps of two seconds";
  EXPECT_EQ(goodput().lost_steps(), 5u);
  started(15);  // Another rank.
  step(16, 2);
  after(8, v1::Job::CANCELLING);
  after(1, v1::Job::CANCELLED);
  const v1::Goodput all = goodput(1000);
  EXPECT_DOUBLE_EQ(all.queued_seconds(), 10);
  EXPECT_DOUBLE_EQ(all.starting_seconds(), 5);
  EXPECT_DOUBLE_EQ(all.productive_seconds(), 40 - 1.5 - 10 + 8);
  EXPECT_DOUBLE_EQ(all.lost_seconds(), 10);
  EXPECT_DOUBLE_EQ(all.stalled_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(all.recovering_seconds(), 3 + 7 + 2);
  EXPECT_DOUBLE_EQ(all.ending_seconds(), 1);
  EXPECT_DOUBLE_EQ(sum(all), 76) << "and no more once it is over";
}

// An epoch that never ran again where it had been: all that it lost is what it was ahead.
TEST_F(GoodputTest, WhatIsLostIsNeverMoreThanWhatWasDone) {
  after(0, v1::Job::STARTING);
  after(0, v1::Job::RUNNING);
  started(0);
  step(1, 50);  // Of which most was before all ranks ran.
  after(20, v1::Job::RESTARTING);
  after(0, v1::Job::QUEUED);
  after(0, v1::Job::STARTING);
  started(0);
  EXPECT_DOUBLE_EQ(goodput().lost_seconds(), 20);
  EXPECT_DOUBLE_EQ(goodput().productive_seconds(), 0);
  EXPECT_DOUBLE_EQ(sum(goodput()), 20);
}

TEST_F(GoodputTest, ARecordOfAnOlderVersionCountsFromItsBeginning) {
  record_.mutable_job()->set_state(v1::Job::RUNNING);
  record_.mutable_job()->set_epoch(3);
  after(30, v1::Job::SUCCEEDED);
  EXPECT_DOUBLE_EQ(goodput().productive_seconds(), 30);
}

// A clock that goes back takes nothing away.
TEST_F(GoodputTest, TimeThatRunsBackIsNone) {
  after(10, v1::Job::STARTING);
  after(-5, v1::Job::RUNNING);
  EXPECT_DOUBLE_EQ(sum(goodput()), 10);
}

}  // namespace
}  // namespace telar::server::jobs
