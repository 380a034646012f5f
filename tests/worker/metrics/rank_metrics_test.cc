#include "worker/metrics/rank_metrics.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "worker/metrics/daemon_metrics.h"

namespace telar::metrics {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::RankPlan plan(uint32_t rank, uint64_t epoch = 1) {
  v1::RankPlan plan;
  plan.set_epoch(epoch);
  plan.set_rank(rank);
  plan.set_world_size(4);
  plan.mutable_spec()->mutable_parallel()->set_tensor(2);
  plan.mutable_spec()->mutable_parallel()->set_data(2);
  plan.mutable_device()->set_index(rank);
  return plan;
}

v1::RankEvent started() {
  v1::RankEvent event;
  event.mutable_started()->set_parameters(1'000'000);
  event.mutable_started()->set_flops_per_token(6'000'000);
  event.mutable_started()->set_peak_flops(1e12);
  auto* use = event.mutable_started()->add_memory();
  use->set_memory_class("weights");
  use->set_bytes(4'000'000);
  return event;
}

v1::RankEvent step(double loss) {
  v1::RankEvent event;
  event.mutable_time()->set_seconds(1'700'000'000);
  event.mutable_step()->set_step(1);
  event.mutable_step()->set_loss(loss);
  event.mutable_step()->set_grad_norm(0.5);
  event.mutable_step()->set_learning_rate(0.25);
  event.mutable_step()->set_seconds(0.04);
  event.mutable_step()->set_tokens(4096);
  event.mutable_step()->set_consumed_samples(16);
  auto* phase = event.mutable_step()->add_phases();
  phase->set_phase("optimizer");
  phase->set_seconds(0.01);
  auto* use = event.mutable_step()->add_memory();
  use->set_memory_class("context");
  use->set_bytes(5'000'000);
  return event;
}

v1::RankEvent eval_and_checkpoint(bool eval) {
  v1::RankEvent event;
  event.mutable_time()->set_seconds(1'700'000'001);
  if (eval) {
    event.mutable_eval()->set_loss(1.5);
    v1::SourceLoss& source = *event.mutable_eval()->add_sources();
    source.set_name("books");
    source.set_loss(1.25);
  }
  if (!eval) event.mutable_checkpoint()->set_bytes(12'000'000);
  return event;
}

class RankMetricsTest : public testing::Test {
 protected:
  std::string page() { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

  prometheus::Registry registry_;
  RankMetrics metrics_{registry_, "node-a"};
};

TEST_F(RankMetricsTest, RankZeroSpeaksForTheJobAndTokensAreShared) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    metrics_.add("j1", plan(rank));
    metrics_.observe("j1", 1, rank, started());
    metrics_.observe("j1", 1, rank, step(2.5));
  }
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("telar_loss{job_id=\"j1\",rank=\"0\"} 2.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("telar_loss{job_id=\"j1\",rank=\"1\"}")));
  for (const char* rank : {"0", "1"}) {
    const std::string labels = std::string("job_id=\"j1\",rank=\"") + rank + "\"";
    EXPECT_THAT(text, HasSubstr("telar_tokens_total{" + labels + "} 1024\n"));
    EXPECT_THAT(text, HasSubstr("telar_model_flops_total{convention=\"causal\"," + labels + "} 6144000000\n"));
    EXPECT_THAT(text, HasSubstr("telar_steps_total{" + labels + "} 1\n"));
    EXPECT_THAT(text, HasSubstr("telar_memory_bytes{class=\"weights\"," + labels + "} 4000000\n"));
    EXPECT_THAT(text, HasSubstr("telar_memory_bytes{class=\"context\"," + labels + "} 5000000\n"));
    EXPECT_THAT(text, HasSubstr("telar_step_phase_seconds_total{" + labels.substr(0, 12) + "phase=\"optimizer\""));
    EXPECT_THAT(text, HasSubstr("telar_step_seconds_bucket{" + labels + ",le=\"0.05\"} 1\n"));
    EXPECT_THAT(text, HasSubstr("telar_step_seconds_bucket{" + labels + ",le=\"0.03\"} 0\n"));
  }
  EXPECT_THAT(text, HasSubstr("telar_rank_info{device=\"cpu1\",dp=\"0\",job_id=\"j1\",node=\"node-a\",pp=\"0\","
                              "rank=\"1\",tp=\"1\"} 1\n"));
}

// The device's time of every step is split as that of the last step that was looked at.
TEST_F(RankMetricsTest, AnAccountSplitsTheTimeOfSteps) {
  metrics_.add("j1", plan(0));
  metrics_.observe("j1", 1, 0, started());
  const auto timed = [&](double device, double host, bool account) {
    v1::RankEvent event = step(1);
    event.mutable_step()->clear_phases();
    const auto add = [](auto& phases, const char* name, double seconds) {
      v1::PhaseTime& phase = *phases.Add();
      phase.set_phase(name);
      phase.set_seconds(seconds);
    };
    add(*event.mutable_step()->mutable_phases(), "device", device - 0.5);
    add(*event.mutable_step()->mutable_phases(), "peers", 0.5);
    add(*event.mutable_step()->mutable_phases(), "host", host);
    if (account) {
      v1::StepAccount& told = *event.mutable_step()->mutable_account();
      told.set_seconds(4);
      add(*told.mutable_parts(), "forward", 3);
      add(*told.mutable_parts(), "gang_wait", 1);
      v1::CommUse& use = *told.add_communication();
      use.set_group("world");
      use.set_ranks(2);
      use.set_op("all_reduce");
      use.set_calls(3);
      use.set_bytes(100);
      use.set_seconds(2);
      told.mutable_pipeline()->set_window_seconds(3.5);
      told.mutable_pipeline()->set_cooldown_idle_seconds(0.25);
    }
    metrics_.observe("j1", 1, 0, event);
  };
  timed(2, 0.25, false);
  timed(4, 0.25, true);
  timed(8, 0.5, false);
  const std::string text = page(), labels = "job_id=\"j1\",phase=\"";
  const auto phase = [&](const char* name, const char* value) {
    EXPECT_THAT(text, HasSubstr("telar_step_phase_seconds_total{" + labels + name + "\",rank=\"0\"} " + value + "\n"));
  };
  phase("device", "1.5");
  phase("peers", "0.5");
  phase("host", "1");
  phase("forward", "9");
  phase("gang_wait", "3");
  const std::string comm = "{group=\"world\",job_id=\"j1\",op=\"all_reduce\",rank=\"0\"} ";
  EXPECT_THAT(text, HasSubstr("telar_comm_bytes_total" + comm + "200\n"));
  EXPECT_THAT(text, HasSubstr("telar_comm_calls_total" + comm + "6\n"));
  EXPECT_THAT(text, HasSubstr("telar_comm_seconds_total" + comm + "6\n"));
  EXPECT_THAT(text, HasSubstr("telar_comm_group_ranks{group=\"world\",job_id=\"j1\",rank=\"0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("telar_pipeline_window_seconds_total{job_id=\"j1\",rank=\"0\"} 10.5\n"));
  EXPECT_THAT(text, HasSubstr("telar_pipeline_idle_seconds_total{job_id=\"j1\",part=\"cooldown\",rank=\"0\"} 0.75\n"));
}

TEST_F(RankMetricsTest, EvalAndCheckpoint) {
  metrics_.add("j1", plan(0));
  metrics_.observe("j1", 1, 0, eval_and_checkpoint(true));
  metrics_.observe("j1", 1, 0, eval_and_checkpoint(false));
  metrics_.observe("j1", 1, 0, eval_and_checkpoint(false));
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("telar_eval_loss{job_id=\"j1\",rank=\"0\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("telar_eval_source_loss{job_id=\"j1\",rank=\"0\",source=\"books\"} 1.25\n"));
  EXPECT_THAT(text, HasSubstr("telar_checkpoint_saves_total{job_id=\"j1\",rank=\"0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("telar_checkpoint_bytes_total{job_id=\"j1\",rank=\"0\"} 24000000\n"));
  EXPECT_THAT(text,
              HasSubstr("telar_checkpoint_last_success_timestamp_seconds{job_id=\"j1\",rank=\"0\"} 1700000001\n"));
}

// What is staged is no success yet, and what failed none at all.
TEST_F(RankMetricsTest, StatesOfASave) {
  metrics_.add("j1", plan(0));
  metrics_.observe("j1", 1, 0, started());
  const auto save = [&](v1::CheckpointReport::State state, uint64_t step, double stall) {
    v1::RankEvent event;
    v1::CheckpointReport& report = *event.mutable_checkpoint();
    report.set_state(state);
    report.set_step(step);
    report.set_seconds(1.5);
    report.set_stall_seconds(stall);
    metrics_.observe("j1", 1, 0, event);
  };
  save(v1::CheckpointReport::STAGED, 10, 0.125);
  EXPECT_THAT(page(), HasSubstr("telar_checkpoint_saves_total{job_id=\"j1\",rank=\"0\"} 0\n"));
  save(v1::CheckpointReport::DURABLE, 10, 0.125);
  save(v1::CheckpointReport::STAGED, 20, 0.25);
  save(v1::CheckpointReport::FAILED, 20, 0.25);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("telar_checkpoint_saves_total{job_id=\"j1\",rank=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("telar_checkpoint_failures_total{job_id=\"j1\",rank=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("telar_checkpoint_last_durable_step{job_id=\"j1\",rank=\"0\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("telar_checkpoint_stall_seconds_total{job_id=\"j1\",rank=\"0\"} 0.375\n"));
  EXPECT_THAT(text, HasSubstr("telar_checkpoint_save_seconds_count{job_id=\"j1\",rank=\"0\"} 1\n"));
}

TEST_F(RankMetricsTest, CountsStepsThatAreNotFinite) {
  metrics_.add("j1", plan(0));
  metrics_.observe("j1", 1, 0, step(2));
  metrics_.observe("j1", 1, 0, step(std::numeric_limits<double>::quiet_NaN()));
  metrics_.observe("j1", 1, 0, step(std::numeric_limits<double>::infinity()));
  EXPECT_THAT(page(), HasSubstr("telar_nonfinite_total{job_id=\"j1\",rank=\"0\"} 2\n"));
}

TEST_F(RankMetricsTest, LossScaleAndSkippedSteps) {
  metrics_.add("j1", plan(0));
  metrics_.observe("j1", 1, 0, started());
  metrics_.observe("j1", 1, 0, step(2));
  EXPECT_THAT(page(), HasSubstr("telar_skipped_steps_total{job_id=\"j1\",rank=\"0\"} 0\n"));
  EXPECT_THAT(page(), Not(HasSubstr("telar_loss_scale{")));  // The precision has none.
  for (double scale : {1024.0, 512.0}) {
    v1::RankEvent event = step(2);
    event.mutable_step()->set_loss_scale(scale);
    event.mutable_step()->set_skipped(true);
    metrics_.observe("j1", 1, 0, event);
  }
  EXPECT_THAT(page(), HasSubstr("telar_skipped_steps_total{job_id=\"j1\",rank=\"0\"} 2\n"));
  EXPECT_THAT(page(), HasSubstr("telar_loss_scale{job_id=\"j1\",rank=\"0\"} 512\n"));
}

TEST_F(RankMetricsTest, ForgottenRanksLeaveNoSeries) {
  metrics_.add("j1", plan(0));
  metrics_.add("j2", plan(0));
  metrics_.observe("j1", 1, 0, started());
  metrics_.observe("j1", 1, 0, step(2));
  metrics_.forget("j1", 1, 0);
  EXPECT_THAT(page(), Not(HasSubstr("j1")));
  EXPECT_THAT(page(), HasSubstr("j2"));
}

TEST_F(RankMetricsTest, ANewEpochTakesTheSeriesAndTheOldOneCannotTouchThem) {
  metrics_.add("j1", plan(0, 1));
  metrics_.observe("j1", 1, 0, step(9));
  metrics_.add("j1", plan(0, 2));
  EXPECT_THAT(page(), Not(HasSubstr("telar_loss{")));
  metrics_.observe("j1", 2, 0, step(3));
  metrics_.observe("j1", 1, 0, step(9));
  metrics_.forget("j1", 1, 0);
  EXPECT_THAT(page(), HasSubstr("telar_loss{job_id=\"j1\",rank=\"0\"} 3\n"));
}

TEST_F(RankMetricsTest, NamesPassPromtool) {
  if (system("promtool --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "promtool is not installed";
  DaemonMetrics daemon(registry_, "1.2.3", "node-a");
  daemon.set_connected(true);
  daemon.set_heartbeat_time(1.7e9);
  daemon.count_exit(v1::DATA);
  metrics_.add("j1", plan(0));
  for (const auto& event : {started(), step(2), eval_and_checkpoint(true), eval_and_checkpoint(false)}) {
    metrics_.observe("j1", 1, 0, event);
  }
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("telar_worker_rank_exits_total{class=\"data\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("telar_worker_rank_exits_total{class=\"none\"} 0\n"));
  FILE* promtool = popen("promtool check metrics 2>&1", "w");
  ASSERT_NE(promtool, nullptr);
  fwrite(text.data(), 1, text.size(), promtool);
  EXPECT_EQ(pclose(promtool), 0) << text;
}

}  // namespace
}  // namespace telar::metrics
