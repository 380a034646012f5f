#include "client/output/job_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/client/output/golden.h"

namespace telar::client {
namespace {

v1::JobEvent step_event(uint64_t step, double loss) {
  v1::JobEvent event;
  event.mutable_rank_report()->set_epoch(1);
  v1::StepReport& report = *event.mutable_rank_report()->mutable_event()->mutable_step();
  report.set_step(step);
  report.set_loss(loss);
  report.set_seconds(2);
  report.set_tokens(100);
  return event;
}

v1::JobEvent start_event(uint32_t rank, uint64_t epoch, uint64_t step) {
  v1::JobEvent event;
  event.mutable_rank_report()->set_rank(rank);
  event.mutable_rank_report()->set_epoch(epoch);
  v1::RankStarted& started = *event.mutable_rank_report()->mutable_event()->mutable_started();
  started.set_start_step(step);
  started.set_flops_per_token(10);
  started.set_hardware_flops_per_step(600);
  started.set_pipeline_bubble_theory(0.25);
  return event;
}

TEST(JobHistoryTest, KnowsNothingAtFirst) {
  const JobHistory history;
  EXPECT_TRUE(history.losses().empty());
  EXPECT_FALSE(history.smoothed_loss());
  EXPECT_FALSE(history.eval());
  EXPECT_FALSE(history.bubble());
  EXPECT_EQ(history.shares().step_seconds, 0);
  EXPECT_EQ(history.hardware_share(), 0);
  EXPECT_TRUE(history.parts().empty());
}

TEST(JobHistoryTest, SmoothsByStepsWhetherAllAreToldOfOrNot) {
  JobHistory all, some;
  for (uint64_t step = 1; step <= 100; ++step) {
    all.add(step_event(step, step <= 50 ? 4 : 2));
    if (step == 50 || step == 100) some.add(step_event(step, step <= 50 ? 4 : 2));
  }
  const double expected = 2 + 2 * std::pow(0.98, 50);
  EXPECT_NEAR(*all.smoothed_loss(), expected, 1e-9);
  EXPECT_NEAR(*some.smoothed_loss(), expected, 1e-9);
}

TEST(JobHistoryTest, ARestartTakesBackWhatIsDoneAgain) {
  JobHistory history;
  history.add(start_event(0, 1, 0));
  for (uint64_t step = 1; step <= 30; ++step) history.add(step_event(step, 5));
  history.add(start_event(1, 2, 20));
  history.add(start_event(0, 2, 20));
  ASSERT_EQ(history.losses().size(), 20u);
  history.add(step_event(21, 3));
  EXPECT_EQ(history.losses().back().step, 21u);
  EXPECT_NEAR(*history.smoothed_loss(), 5 - 2 * 0.02, 1e-9);
  EXPECT_DOUBLE_EQ(history.hardware_share(), 1.2);  // Of both ranks of this epoch alone.
}

TEST(JobHistoryTest, LossesThatAreNoNumbersAreLeftOut) {
  JobHistory history;
  history.add(step_event(1, 5));
  history.add(step_event(2, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(history.losses().size(), 1u);
  EXPECT_EQ(*history.smoothed_loss(), 5);
}

TEST(JobHistoryTest, KeepsABoundedCurveOfTheWholeRun) {
  JobHistory history;
  constexpr uint64_t kSteps = 50'000;
  for (uint64_t step = 1; step <= kSteps; ++step) history.add(step_event(step, static_cast<double>(step)));
  const std::vector<Point>& losses = history.losses();
  EXPECT_LE(losses.size(), JobHistory::kMostPoints);
  EXPECT_GT(losses.size(), JobHistory::kMostPoints / 4);
  EXPECT_LT(losses.front().step, kSteps / 100);
  EXPECT_EQ(losses.back().step, kSteps);
  for (size_t i = 1; i < losses.size(); ++i) ASSERT_LT(losses[i - 1].step, losses[i].step);
}

TEST(JobHistoryTest, SharesAreThoseOfTheLastSteps) {
  JobHistory history;
  for (uint64_t step = 1; step <= 40; ++step) {
    v1::JobEvent event = step_event(step, 1);
    v1::StepReport& report = *event.mutable_rank_report()->mutable_event()->mutable_step();
    for (const auto& [name, seconds] : {std::pair("data_wait", 0.5), {"device", 1.0}, {"checkpoint_stall", 0.1}}) {
      report.add_phases()->set_phase(name);
      report.mutable_phases()->rbegin()->set_seconds(step <= 20 ? 0 : seconds);
    }
    history.add(event);
  }
  const JobHistory::Shares shares = history.shares();
  EXPECT_DOUBLE_EQ(shares.step_seconds, 2);
  EXPECT_NEAR(shares.data_wait, 0.25, 1e-12);
  EXPECT_NEAR(shares.checkpoint_stall, 0.05, 1e-12);
}

TEST(JobHistoryTest, TheAccountGivesBubbleAndParts) {
  JobHistory history;
  history.add(start_event(0, 1, 0));
  v1::JobEvent event = step_event(4, 1);
  *event.mutable_rank_report()->mutable_event()->mutable_step()->mutable_account() = parse<v1::StepAccount>(R"(
      seconds: 2 parts { phase: "forward" seconds: 0.5 } parts { phase: "backward" seconds: 1.5 }
      pipeline { window_seconds: 1.6 warmup_idle_seconds: 0.2 steady_idle_seconds: 0.1 cooldown_idle_seconds: 0.1 })");
  history.add(event);
  history.add(step_event(5, 1));
  EXPECT_DOUBLE_EQ(*history.bubble(), 0.25);
  EXPECT_DOUBLE_EQ(history.bubble_theory(), 0.25);
  ASSERT_EQ(history.parts().size(), 2u);
  EXPECT_EQ(history.parts()[0].phase(), "backward");
  EXPECT_DOUBLE_EQ(history.parts()[0].seconds(), 0.75);
  history.add(start_event(0, 2, 4));
  EXPECT_FALSE(history.bubble()) << "of another epoch";
}

TEST(JobHistoryTest, EvaluationsAndNotes) {
  JobHistory history;
  for (const auto& [step, loss] : {std::pair(10, 3.0), {20, 2.5}, {30, 2.75}}) {
    v1::JobEvent event;
    event.mutable_time()->set_seconds(step);
    event.mutable_rank_report()->mutable_event()->mutable_eval()->set_step(static_cast<uint64_t>(step));
    event.mutable_rank_report()->mutable_event()->mutable_eval()->set_loss(loss);
    history.add(event);
  }
  EXPECT_EQ(history.eval()->step, 30u);
  EXPECT_EQ(history.best_eval()->step, 20u);
  ASSERT_EQ(history.notes().size(), 3u);
  EXPECT_EQ(history.notes()[0].text, "eval at step 10: loss 3.0000");
  for (int i = 0; i < 100; ++i) history.note(i, "connection lost, retrying");
  EXPECT_EQ(history.notes().size(), JobHistory::kMostNotes);
}

}  // namespace
}  // namespace telar::client
