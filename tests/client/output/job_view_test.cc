#include "client/output/job_view.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/output/table.h"
#include "tests/client/output/golden.h"

namespace telar::client {
namespace {

constexpr int64_t kWatchNow = 1'800'000'000;  // 2027-01-15T08:00:00Z

v1::Job watched_job() {
  v1::Job job = parse<v1::Job>(R"(
    name: "projects/default/jobs/gpt2-x7k2" state: RUNNING epoch: 2 node_restarts: 1 parameters: 124439808
    run_seconds: 8040 create_time { seconds: 1799990000 }
    spec { name: "gpt2-large-batch" parallel { data: 2 tensor: 2 pipeline: 2 } resources { devices: 8 kind: GPU }
           precision { compute: BF16 } }
    progress { step: 1204 total_steps: 5000 loss: 3.4512 first_loss: 10.9876 tokens_per_second: 477123 mfu: 0.387
               eta_seconds: 3720 checkpoint_step: 1200 checkpoint_path: "/runs/gpt2-x7k2/ckpt/step-00001200" }
    memory { memory_class: "weights" bytes: 500000000 }
    forecast { tokens_per_second: 500000 mfu: 0.41 memory { device_bytes: 84000000000 } }
    conditions { type: "STRAGGLER"
                 message: "rank 3 on node node-b takes 0.31 s of its own a step, 1.45 times the gang's median, since step 1180" })");
  for (uint32_t rank = 0; rank < 8; ++rank) {
    v1::RankPlacement& place = *job.add_placement();
    place = parse<v1::RankPlacement>(R"(
      state: RUNNING pid: 4711 device { kind: GPU model: "NVIDIA H200" memory_bytes: 150754820096 }
      progress { step: 1204 step_seconds: 0.421 own_seconds: 0.21 silent_seconds: 0.2 memory_bytes: 78000000000 })");
    place.set_rank(rank);
    place.set_node(rank < 4 ? "node-a" : "node-b");
    place.mutable_device()->set_index(rank % 4);
  }
  job.mutable_placement(3)->mutable_progress()->set_straggler(true);
  job.mutable_placement(3)->mutable_progress()->set_own_seconds(0.31);
  return job;
}

JobHistory history_of_running() {
  JobHistory history;
  const auto add = [&](const std::string& text) {
    v1::JobEvent event = parse<v1::JobEvent>(text);
    event.mutable_time()->set_seconds(kWatchNow - 60);
    history.add(event);
  };
  add("state_change { from: QUEUED to: STARTING epoch: 2 reason: 'placed 8 ranks' }");
  for (int rank = 0; rank < 8; ++rank) {
    add(absl::StrCat("rank_report { rank: ", rank, R"( epoch: 2 event { started {
        flops_per_token: 800000000 hardware_flops_per_step: 2.1e13 pipeline_bubble_theory: 0.111 } } })"));
  }
  add("state_change { from: STARTING to: RUNNING epoch: 2 reason: 'all 8 ranks run' }");
  for (int step = 1; step <= 1204; ++step) {
    const double loss = 3.2 + 7.7 * std::exp(-step / 150.0) + 0.05 * std::sin(step * 1.7);
    add(absl::StrCat("rank_report { epoch: 2 event { step { step: ", step, " loss: ", loss, R"( seconds: 0.42
        tokens: 200000 phases { phase: "data_wait" seconds: 0.001 } phases { phase: "checkpoint_stall" seconds: 0.0021 } )",
                     step == 1200 ? R"(account { seconds: 0.42 parts { phase: "forward" seconds: 0.12 }
        parts { phase: "backward" seconds: 0.2 } parts { phase: "pipeline_wait" seconds: 0.04 }
        parts { phase: "grad_comm_exposed" seconds: 0.03 } parts { phase: "optimizer" seconds: 0.02 }
        parts { phase: "device_idle" seconds: 0.01 }
        pipeline { window_seconds: 0.38 warmup_idle_seconds: 0.02 steady_idle_seconds: 0.01 cooldown_idle_seconds: 0.02 } })"
                                  : "",
                     "} } }"));
  }
  add("rank_report { epoch: 2 event { eval { step: 1000 loss: 3.4401 } } }");
  add("rank_report { epoch: 2 event { eval { step: 1200 loss: 3.4612 } } }");
  add(R"(rank_report { epoch: 2 event { checkpoint { step: 1200 path: "/runs/gpt2-x7k2/ckpt/step-00001200"
      bytes: 1500000000 seconds: 4.2 state: DURABLE } } })");
  return history;
}

std::string page_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Without its colours, no line is wider than it may be.
void expect_fits(const std::vector<std::string>& lines, const ViewStyle& style) {
  EXPECT_LE(lines.size(), style.height);
  for (std::string line : lines) {
    for (size_t at = line.find('\x1b'); at != std::string::npos; at = line.find('\x1b')) {
      line.erase(at, line.find('m', at) - at + 1);
    }
    EXPECT_LE(width_of(line), style.width) << line;
  }
}

std::string view_of(const v1::Job& job, const JobHistory& history, const ViewStyle& style) {
  const auto lines = job_view(job, history, kWatchNow, 1, style);
  expect_fits(lines, style);
  return page_of(lines);
}

TEST(JobViewTest, ARunningJobAtThreeWidths) {
  const JobHistory history = history_of_running();
  expect_golden("watch_60_ascii.txt", view_of(watched_job(), history, {.width = 60, .height = 40}));
  expect_golden("watch_80.txt", view_of(watched_job(), history, {.width = 80, .height = 40, .unicode = true}));
  expect_golden("watch_120.txt", view_of(watched_job(), history, {.width = 120, .height = 40, .unicode = true}));
  expect_golden("watch_120_colour.txt",
                view_of(watched_job(), history, {.width = 120, .height = 40, .unicode = true, .colour = true}));
}

TEST(JobViewTest, AsciiIsAsciiAndNoColourIsNone) {
  for (const char c : view_of(watched_job(), history_of_running(), {.width = 100, .height = 50})) {
    ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  }
}

TEST(JobViewTest, FitsWhateverTheTerminalIs) {
  v1::Job job = watched_job();
  job.mutable_spec()->set_name(std::string(63, 'n'));
  job.mutable_placement(5)->set_node(std::string(200, 'x'));
  job.mutable_placement(5)->set_state(v1::RankPlacement::LOST);
  job.mutable_placement(5)->set_message("the lease of its node ran out\nand more \xc3\xa9\xc3\xa9");
  const JobHistory history = history_of_running();
  for (const size_t width : {20, 33, 60, 80, 200}) {
    for (const size_t height : {4, 10, 24, 60}) {
      for (const bool unicode : {false, true}) view_of(job, history, {width, height, unicode, true});
    }
  }
  const std::string narrow = view_of(job, history, {.width = 40, .height = 24});
  EXPECT_TRUE(narrow.substr(0, narrow.find('\n')).ends_with("  RUNNING")) << narrow;
}

TEST(JobViewTest, ALowTerminalKeepsTheEventsAndSomeRanks) {
  const std::string low = view_of(watched_job(), history_of_running(), {.width = 100, .height = 26});
  EXPECT_NE(low.find("straggler"), std::string::npos) << low;
  EXPECT_NE(low.find(" more: "), std::string::npos) << low;
  EXPECT_NE(low.find("checkpoint at step 1200"), std::string::npos) << low;
}

TEST(JobViewTest, OfManyRanksTheMarkedOnesAreShown) {
  v1::Job job = watched_job();
  for (uint32_t rank = 8; rank < 64; ++rank) {
    *job.add_placement() = job.placement(0);
    job.mutable_placement()->rbegin()->set_rank(rank);
  }
  job.mutable_placement(60)->mutable_progress()->set_hung(true);
  job.mutable_placement(60)->mutable_progress()->set_silent_seconds(80);
  const std::string shown = view_of(job, history_of_running(), {.width = 120, .height = 60});
  EXPECT_NE(shown.find("\n60    RUNNING HUNG       1204  1m21s"), std::string::npos) << shown;
  EXPECT_NE(shown.find("and 52 more: 52 RUNNING\n"), std::string::npos) << shown;
}

TEST(JobViewTest, NoLossYet) {
  v1::Job job = watched_job();
  job.set_state(v1::Job::STARTING);
  job.set_epoch(1);
  job.clear_memory();
  job.clear_conditions();
  job.clear_forecast();
  job.set_run_seconds(0);
  job.mutable_progress()->Clear();
  job.mutable_progress()->set_total_steps(5000);
  for (v1::RankPlacement& place : *job.mutable_placement()) {
    place.clear_progress();
    place.set_state(v1::RankPlacement::ASSIGNED);
  }
  expect_golden("watch_starting.txt", view_of(job, JobHistory(), {.width = 80, .height = 24, .unicode = true}));
}

TEST(JobViewTest, PausedForOthers) {
  v1::Job job = watched_job();
  job.set_state(v1::Job::QUEUED);
  job.set_message("waits for 8 devices: 2 are free, 6 are held by jobs that come first");
  job.mutable_waiting()->set_unblock("gpt3-a1b2 ends");
  job.clear_placement();
  job.clear_conditions();
  expect_golden("watch_queued.txt", view_of(job, history_of_running(), {.width = 80, .height = 30, .unicode = true}));
}

TEST(JobViewTest, FailedAndDone) {
  v1::Job job = watched_job();
  job.set_state(v1::Job::FAILED);
  job.set_message("rank 3: NUMERIC: loss or gradient norm not finite for 10 steps in a row, up to step 1204");
  for (v1::RankPlacement& place : *job.mutable_placement()) {
    place.set_state(v1::RankPlacement::EXITED);
    place.clear_progress();
  }
  expect_golden("watch_failed.txt", view_of(job, history_of_running(), {.width = 80, .height = 30, .unicode = true}));
  job.set_state(v1::Job::SUCCEEDED);
  job.clear_message();
  job.mutable_progress()->set_step(5000);
  expect_golden("watch_done.txt", view_of(job, history_of_running(), {.width = 80, .height = 30, .unicode = true}));
}

TEST(JobViewTest, OldNewsIsSaidToBeOld) {
  const auto lines = job_view(watched_job(), JobHistory(), kWatchNow, 30, {.width = 120, .height = 40});
  EXPECT_NE(lines[0].find("no news for 30s"), std::string::npos) << lines[0];
  EXPECT_NE(page_of(lines).find("30s"), std::string::npos);
}

v1::ListJobsResponse two_that_live() {
  v1::ListJobsResponse jobs;
  *jobs.add_jobs() = watched_job();
  v1::Job& queued = *jobs.add_jobs();
  queued = parse<v1::Job>(R"(name: "projects/default/jobs/waiting-w1" state: QUEUED spec { name: "waiting" }
      message: "waits for 8 devices, 2 free" create_time { seconds: 1799999000 } progress { total_steps: 100 })");
  return jobs;
}

TEST(JobsViewTest, ATableOfThoseThatLive) {
  const ViewStyle style{.width = 120, .height = 24, .unicode = true};
  const auto lines = jobs_view(two_that_live(), "", kWatchNow, style);
  expect_fits(lines, style);
  expect_golden("watch_all.txt", page_of(lines));
  EXPECT_EQ(jobs_view({}, "", kWatchNow, style), std::vector<std::string>{"0 live jobs"});
}

TEST(JobsViewTest, WhatDoesNotFitIsCounted) {
  v1::ListJobsResponse jobs = two_that_live();
  while (jobs.jobs_size() < 50) *jobs.add_jobs() = jobs.jobs(1);
  const ViewStyle style{.width = 60, .height = 12};
  const auto lines = jobs_view(jobs, "no answer from a:1, retrying", kWatchNow, style);
  expect_fits(lines, style);
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_EQ(lines[0], "50 live jobs, 49 QUEUED, 1 RUNNING");
  EXPECT_EQ(lines[1], "no answer from a:1, retrying");
  EXPECT_EQ(lines.back(), "and 43 more");
}

}  // namespace
}  // namespace telar::client
