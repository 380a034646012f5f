#include <thread>

#include "client/commands/exit_codes.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

using testing::Test;

class WatchTest : public CommandTest {
 protected:
  // A whole life of one job, ending in `end`.
  v1::Job& life(v1::Job::State end) {
    v1::Job& job = add_job("demo-x1", end);
    add_event(job, v1::Job::STATE_UNSPECIFIED, v1::Job::QUEUED);
    add_event(job, v1::Job::QUEUED, v1::Job::STARTING, "placed on node-a");
    add_event(job, v1::Job::STARTING, v1::Job::RUNNING);
    add_event(job, v1::Job::RUNNING, end);
    return job;
  }
  size_t occurrences(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
};

TEST_F(WatchTest, EndsWithTheCodeOfTheJob) {
  for (const auto& [end, code] :
       {std::pair{v1::Job::SUCCEEDED, kOk}, {v1::Job::FAILED, kJobFailed}, {v1::Job::CANCELLED, kCancelled}}) {
    coordinator.service.events.clear();
    life(end);
    EXPECT_EQ(watch(context, {.job = "demo-x1"}), code) << err.str();
  }
}

TEST_F(WatchTest, ShowsEachStateChangeOnceAndTheResult) {
  v1::Job& job = life(v1::Job::SUCCEEDED);
  job.mutable_progress()->set_step(20);
  job.mutable_progress()->set_total_steps(20);
  job.mutable_progress()->set_first_loss(5.5);
  job.mutable_progress()->set_loss(2.25);
  job.mutable_progress()->set_sample("In the beginning");
  EXPECT_EQ(watch(context, {.job = "demo-x1"}), kOk);
  EXPECT_EQ(occurrences(err.str(), "QUEUED -> STARTING: placed on node-a"), 1u) << err.str();
  EXPECT_EQ(occurrences(err.str(), "RUNNING -> SUCCEEDED"), 1u);
  EXPECT_NE(out.str().find("5.5000 -> 2.2500"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("In the beginning"), std::string::npos);
  EXPECT_EQ(out.str().find("STARTING"), std::string::npos) << "progress belongs on stderr";
}

TEST_F(WatchTest, ResumesAfterABrokenStreamByItsSequence) {
  life(v1::Job::SUCCEEDED);
  coordinator.service.break_streams_after = {2, 0, 0};
  EXPECT_EQ(watch(context, {.job = "demo-x1"}), kOk);
  ASSERT_EQ(coordinator.service.watches.size(), 4u);
  EXPECT_EQ(coordinator.service.watches[0].after_sequence(), 0u);
  EXPECT_EQ(coordinator.service.watches[1].after_sequence(), 2u);
  EXPECT_EQ(coordinator.service.watches[3].after_sequence(), 2u);
  EXPECT_EQ(occurrences(err.str(), "connection lost, retrying"), 1u) << err.str();
  EXPECT_EQ(occurrences(err.str(), "placed on node-a"), 1u);
  EXPECT_EQ(occurrences(err.str(), "RUNNING -> SUCCEEDED"), 1u);
}

TEST_F(WatchTest, AnEarlyOrderlyEndIsNotTheEndOfTheJob) {
  v1::Job& job = life(v1::Job::SUCCEEDED);
  coordinator.service.events.pop_back();
  job.set_state(v1::Job::RUNNING);
  int ends = 0;
  coordinator.service.on_watch_end = [&](v1::Job& watched) {
    if (++ends == 2) watched.set_state(v1::Job::SUCCEEDED);
  };
  EXPECT_EQ(watch(context, {.job = "demo-x1"}), kOk);
  EXPECT_EQ(coordinator.service.watches.size(), 2u);
}

TEST_F(WatchTest, GivesUpAfterTheTimeoutWithoutContact) {
  life(v1::Job::RUNNING);
  coordinator.service.hold_streams = true;
  context.options.timeout = Milliseconds(1000);
  std::thread killer([&] {
    coordinator.service.wait_for_streams(1);
    coordinator.stop();
  });
  EXPECT_EQ(watch(context, {.job = "demo-x1"}), kLost);
  killer.join();
  EXPECT_NE(err.str().find("lost the coordinator at " + coordinator.address()), std::string::npos) << err.str();
}

TEST_F(WatchTest, StopsWaitingAfterTheWaitTimeout) {
  life(v1::Job::RUNNING);
  coordinator.service.hold_streams = true;
  EXPECT_EQ(watch(context, {.job = "demo-x1", .wait_timeout = Milliseconds(50)}), kTimedOut);
  EXPECT_NE(err.str().find("demo-x1 is still RUNNING"), std::string::npos) << err.str();
}

TEST_F(WatchTest, FirstInterruptDetachesWithoutCancelling) {
  life(v1::Job::RUNNING);
  coordinator.service.hold_streams = true;
  EXPECT_FALSE(interrupt.trigger()) << "nothing to detach from yet";
  std::thread user([&] {
    coordinator.service.wait_for_streams(1);
    EXPECT_TRUE(interrupt.trigger());
    EXPECT_FALSE(interrupt.trigger()) << "the second one ends the program";
  });
  EXPECT_EQ(watch(context, {.job = "demo-x1"}), kOk);
  user.join();
  EXPECT_NE(err.str().find("detached; job goes on: telar watch demo-x1"), std::string::npos) << err.str();
  EXPECT_TRUE(coordinator.service.cancels.empty());
}

// A clock that moves only when told.
class StillClock final : public Clock {
 public:
  Steady now() const override { return Steady() + passed; }
  Wall wall() const override { return Wall() + passed; }
  std::chrono::milliseconds passed{1'000'000};
};

TEST_F(WatchTest, PlainStepLinesComeAtABoundedRate) {
  v1::Job& job = life(v1::Job::SUCCEEDED);
  coordinator.service.events.resize(3);
  job.set_state(v1::Job::SUCCEEDED);
  for (uint64_t step = 1; step <= 50; ++step) {
    v1::WatchJobResponse report = coordinator.service.events.back();
    report.mutable_event()->set_sequence(3 + step);
    report.mutable_event()->mutable_rank_report()->mutable_event()->mutable_step()->set_step(step);
    report.mutable_job()->mutable_progress()->set_step(step);
    report.mutable_job()->mutable_progress()->set_total_steps(50);
    coordinator.service.events.push_back(report);
  }
  const StillClock still;
  Context quiet{context.options, {in, out, err}, still, interrupt, jobs_stub()};
  EXPECT_EQ(watch(quiet, {.job = "demo-x1"}), kOk);
  EXPECT_EQ(occurrences(err.str(), "/50  loss"), 1u) << err.str();
}

class LiveWatchTest : public WatchTest {
 protected:
  Context live{
      context.options,
      {.in = in, .out = out, .err = err, .live = true, .width = [] { return 60; }, .height = [] { return 20; }},
      clock,
      interrupt,
      jobs_stub()};
};

TEST_F(LiveWatchTest, ATerminalGetsAPageAndIsGivenBackWithIt) {
  v1::Job& job = life(v1::Job::RUNNING);
  coordinator.service.events.clear();
  job.mutable_progress()->set_total_steps(50);
  add_event(job, v1::Job::QUEUED, v1::Job::RUNNING);
  coordinator.service.on_watch_end = [](v1::Job& watched) { watched.set_state(v1::Job::SUCCEEDED); };
  EXPECT_EQ(watch(live, {.job = "demo-x1"}), kOk);
  const std::string shown = err.str();
  EXPECT_TRUE(shown.starts_with("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2Kdemo-x1  demo")) << shown;
  EXPECT_NE(shown.find("step     ["), std::string::npos) << shown;
  EXPECT_NE(shown.find("QUEUED -> RUNNING"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("\x1b[3"), std::string::npos) << "no colour was asked for";
  EXPECT_EQ(occurrences(shown, "\x1b[?1049h"), 1u);
  const size_t left = shown.find("\x1b[?7h\x1b[?25h\x1b[?1049l");
  ASSERT_NE(left, std::string::npos) << shown;
  EXPECT_NE(shown.find("SUCCEEDED", left), std::string::npos) << "the last page stays";
  EXPECT_EQ(shown.find('\x1b', left + 20), std::string::npos);
}

TEST_F(LiveWatchTest, CtrlCGivesTheTerminalBackBeforeItSaysSo) {
  life(v1::Job::RUNNING);
  coordinator.service.hold_streams = true;
  std::thread user([&] {
    coordinator.service.wait_for_streams(1);
    EXPECT_TRUE(interrupt.trigger());
  });
  EXPECT_EQ(watch(live, {.job = "demo-x1"}), kOk);
  user.join();
  const size_t left = err.str().find("\x1b[?1049l");
  if (err.str().find("\x1b[?1049h") != std::string::npos) {
    EXPECT_NE(left, std::string::npos) << err.str();
  }
  EXPECT_TRUE(err.str().ends_with("detached; job goes on: telar watch demo-x1\n")) << err.str();
}

TEST_F(LiveWatchTest, ALostConnectionIsToldOnThePage) {
  life(v1::Job::SUCCEEDED);
  coordinator.service.break_streams_after = {2};
  EXPECT_EQ(watch(live, {.job = "demo-x1"}), kOk);
  EXPECT_NE(err.str().find("connection lost, retrying"), std::string::npos) << err.str();
}

TEST_F(LiveWatchTest, WithoutAJobAllThatLiveUntilCtrlC) {
  add_job("demo-x1", v1::Job::RUNNING);
  add_job("old-x1", v1::Job::SUCCEEDED);
  live.options.timeout = Milliseconds(500);
  EXPECT_EQ(watch(live, {.job = "", .wait_timeout = Milliseconds(150)}), kTimedOut);
  EXPECT_NE(err.str().find("1 live job, 1 RUNNING"), std::string::npos) << err.str();
  EXPECT_EQ(err.str().find("old-x1"), std::string::npos) << err.str();
  std::thread user([&] {
    while (!interrupt.trigger()) std::this_thread::yield();
  });
  EXPECT_EQ(watch(live, {}), kOk);
  user.join();
}

TEST_F(WatchTest, WithoutAJobAndATerminalTheTableOnce) {
  add_job("demo-x1", v1::Job::RUNNING);
  add_job("old-x1", v1::Job::SUCCEEDED);
  EXPECT_EQ(watch(context, {}), kOk);
  EXPECT_EQ(occurrences(out.str(), "\n"), 2u) << out.str();
  EXPECT_NE(out.str().find("demo-x1"), std::string::npos);
}

TEST_F(WatchTest, UnknownJobAndUnreachableCoordinator) {
  EXPECT_EQ(watch(context, {.job = "nothing"}), kNotFound);
  EXPECT_EQ(err.str(), "error: no job has the id or name 'nothing'; `telar list` shows all\n");
  coordinator.stop();
  err.str("");
  EXPECT_EQ(watch(context, {.job = "demo-x1"}), kUnreachable);
  EXPECT_NE(err.str().find(coordinator.address()), std::string::npos) << err.str();
  EXPECT_NE(err.str().find("TELAR_COORDINATOR"), std::string::npos);
}

}  // namespace
}  // namespace telar::client
