// One daemon, its ranks and the coordinator's wishes; see worker_recovery_test.cc for what happens when one of them
// dies.
#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>

#include "tests/worker/agent/worker_fixture.h"

namespace telar::agent {
namespace {

using testing::HasSubstr;

TEST_F(WorkerTest, RegistersWithItsDevices) {
  start_worker();
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.heartbeats().size() >= 3; })) << log();
  const auto self = coordinator_.locked([](const Fake& fake) { return fake.registrations().at(0); });
  EXPECT_EQ(self.node(), "node-a");
  EXPECT_FALSE(self.incarnation().empty());
  EXPECT_THAT(self.metrics_address(), testing::MatchesRegex("127.0.0.1:[1-9][0-9]*"));
  ASSERT_EQ(self.devices_size(), 2);
  EXPECT_EQ(self.devices(1).kind(), v1::ResourceSpec::CPU);
  EXPECT_EQ(self.devices(1).index(), 1u);
  EXPECT_GT(self.devices(1).memory_bytes(), 0u);
  EXPECT_EQ(self.devices(1).nvlink_domain(), 0u);  // All of a node are in one.
  EXPECT_THAT(read_file(root_ + "/ports.json").value_or(""), HasSubstr("\"" + self.metrics_address() + "\""));
}

TEST_F(WorkerTest, TellsWhichDevicesNvlinkJoins) {
  start_worker({"--nvlink-domain-size", "1"});
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return !fake.registrations().empty(); })) << log();
  const auto self = coordinator_.locked([](const Fake& fake) { return fake.registrations().at(0); });
  std::vector<uint32_t> domains;
  for (const v1::Device& device : self.devices()) domains.push_back(device.nvlink_domain());
  EXPECT_THAT(domains, testing::ElementsAre(0, 1));
}

TEST_F(WorkerTest, RunsARankToItsEnd) {
  start_worker();
  coordinator_.assign({assignment("started step:3 print:hello environment finish exit:0")});
  const v1::RankStatus status = wait_over();
  EXPECT_EQ(status.exit_code(), 0) << log();
  EXPECT_TRUE(status.finished());
  EXPECT_EQ(status.failure_class(), v1::FAILURE_CLASS_UNSPECIFIED);
  EXPECT_GT(status.pid(), 1);
  expect_output_is_whole();
  const auto output = coordinator_.locked([](const Fake& fake) { return fake.output(1); });
  ASSERT_EQ(output.events.size(), 5u);
  EXPECT_EQ(output.events[0].started().parameters(), 1234u);
  EXPECT_THAT(output.log, HasSubstr("hello\n"));
  EXPECT_THAT(output.log, HasSubstr("OMP_NUM_THREADS="));
  EXPECT_THAT(output.log, HasSubstr("TELAR_RANK_DIR=" + rank_path()));

  coordinator_.assign({});  // Reported and no longer named: kept for people, but not as a rank.
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(state_path() + "/ranks/j1"); }));
  EXPECT_TRUE(std::filesystem::exists(state_path() + "/finished/j1.1.0/exit.json"));
}

TEST_F(WorkerTest, ThreadsOfThePlanWin) {
  start_worker();
  v1::Assignment with_threads = assignment("environment finish", 1, 0);
  with_threads.mutable_plan()->set_threads(7);
  coordinator_.assign({with_threads, assignment("environment finish", 1, 1)});
  wait_over(1, 0);
  wait_over(1, 1);
  EXPECT_THAT(coordinator_.locked([](const Fake& fake) { return fake.output(1, 0).log; }),
              HasSubstr("OMP_NUM_THREADS=7\n"));
  EXPECT_GE(RankDir(rank_path(1, 1)).read_plan().value_or(v1::RankPlan()).threads(), 1u);
}

TEST_F(WorkerTest, StopLetsARankSaveItsState) {
  start_worker();
  coordinator_.assign({assignment("started run")});
  ASSERT_TRUE(wait_events(10)) << log();
  coordinator_.assign({assignment("started run", 1, 0, v1::Assignment::STOP, 10'000)});
  const v1::RankStatus status = wait_over();
  EXPECT_EQ(status.exit_code(), 10);
  EXPECT_FALSE(status.finished());
  EXPECT_EQ(status.failure_class(), v1::FAILURE_CLASS_UNSPECIFIED);
  expect_output_is_whole();
}

TEST_F(WorkerTest, ARankThatIgnoresTermIsKilledWithItsGrandchild) {
  start_worker();
  coordinator_.assign({assignment("ignore_term fork print:deaf hang")});
  ASSERT_TRUE(wait_running()) << log();
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.output(1).log == "deaf\n"; }));
  const int grandchild = read_pid(rank_path() + "/grandchild");
  ASSERT_TRUE(runs(grandchild));
  coordinator_.assign({assignment("ignore_term fork print:deaf hang", 1, 0, v1::Assignment::STOP, 300)});
  const v1::RankStatus status = wait_over();
  EXPECT_FALSE(runs(grandchild));
  EXPECT_EQ(status.exit_code(), 137);
  EXPECT_EQ(status.failure_class(), v1::CRASH);
  EXPECT_EQ(status.message(), "killed by signal 9 (SIGKILL); last line: deaf");
}

TEST_F(WorkerTest, AGrandchildDoesNotOutliveAFinishedRank) {
  start_worker();
  coordinator_.assign({assignment("fork finish exit:0")});
  const v1::RankStatus status = wait_over();
  EXPECT_TRUE(status.finished()) << log();
  EXPECT_FALSE(runs(read_pid(rank_path() + "/grandchild")));
}

TEST_F(WorkerTest, ItsOwnWordsWinOverItsExitCode) {
  start_worker();
  coordinator_.assign({assignment("fail:DATA:data.train:_x.bin_is_truncated exit:22", 1, 0),
                       assignment("print:oops partial exit:3", 1, 1)});
  const v1::RankStatus told = wait_over(1, 0);
  EXPECT_EQ(told.failure_class(), v1::DATA) << log();
  EXPECT_EQ(told.message(), "data.train:_x.bin_is_truncated");
  const v1::RankStatus untold = wait_over(1, 1);
  EXPECT_EQ(untold.failure_class(), v1::CRASH);
  EXPECT_EQ(untold.message(), "exit code 3; last line: oops");
  EXPECT_TRUE(coordinator_.locked([](const Fake& fake) { return fake.output(1, 1).events.empty(); }));
}

TEST_F(WorkerTest, AMegabyteThenAbortArrivesToTheLastByte) {
  start_worker();
  coordinator_.assign({assignment("bytes:1048579 abort")});
  const v1::RankStatus status = wait_over();
  EXPECT_EQ(status.exit_code(), 134) << log();
  EXPECT_THAT(status.message(), HasSubstr("killed by signal 6 (SIGABRT)"));
  EXPECT_EQ(coordinator_.locked([](const Fake& fake) { return fake.output(1).log.size(); }), 1048579u);
  expect_output_is_whole();
}

TEST_F(WorkerTest, AProgramThatCannotStartIsSaid) {
  rank_program_ = root_ + "/nothing";  // There when the daemon starts, gone when it is needed.
  std::filesystem::copy("/bin/true", rank_program_);
  start_worker();
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return !fake.heartbeats().empty(); })) << log();
  std::filesystem::remove(rank_program_);
  coordinator_.assign({assignment("finish")});
  const v1::RankStatus status = wait_over();
  EXPECT_EQ(status.failure_class(), v1::INTERNAL) << log();
  EXPECT_THAT(status.message(), HasSubstr(root_ + "/nothing: No such file or directory"));
}

TEST_F(WorkerTest, AnUnnamedRankIsKilledAndForgotten) {
  start_worker();
  coordinator_.assign({assignment("ignore_term hang", 1, 0), assignment("hang", 1, 1)});
  ASSERT_TRUE(wait_running(1, 0) && wait_running(1, 1)) << log();
  coordinator_.assign({assignment("hang", 1, 1)});
  EXPECT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.status(1, 0) == nullptr; })) << log();
  EXPECT_TRUE(wait_running(1, 1));
}

TEST_F(WorkerTest, AStaleEpochDiesBeforeTheNewOneStarts) {
  start_worker();
  coordinator_.assign({assignment("ignore_term fork print:old hang", 1)});
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.output(1).log == "old\n"; })) << log();
  const int old_pid = RankDir(rank_path(1)).read_process().value().id.pid;
  const int grandchild = read_pid(rank_path(1) + "/grandchild");
  coordinator_.end_epoch(1);
  coordinator_.assign({assignment("hang", 2)});
  ASSERT_TRUE(wait_running(2)) << log();
  EXPECT_FALSE(runs(old_pid));
  EXPECT_FALSE(runs(grandchild));
  // At no moment did both run: the worker's word, and the order of the processes' lives.
  coordinator_.locked([](const Fake& fake) {
    for (const auto& heartbeat : fake.heartbeats()) {
      int running = 0;
      for (const auto& rank : heartbeat.ranks()) running += rank.state() == v1::RankPlacement::RUNNING ? 1 : 0;
      EXPECT_LE(running, 1);
    }
  });
}

TEST_F(WorkerTest, AStopForWhatNeverStartedIsAnswered) {
  start_worker();
  coordinator_.assign({assignment("hang", 3, 0, v1::Assignment::STOP)});
  const v1::RankStatus status = wait_over(3);
  EXPECT_EQ(status.message(), "stopped before it was started") << log();
  EXPECT_EQ(status.exit_code(), 10);
  EXPECT_FALSE(std::filesystem::exists(rank_path(3)));
}

// The coordinator may have given the device to somebody else meanwhile.
TEST_F(WorkerTest, WhoRegistersAgainStartsNothingThatItWasToldBefore) {
  start_worker();
  coordinator_.assign({assignment("started hang", 1), assignment("started hang", 2)});  // One device: 2 has to wait.
  ASSERT_TRUE(wait_running(1)) << log();
  coordinator_.fall_silent(true);
  coordinator_.stop();
  coordinator_.start();
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.heartbeats().back().registration() == 2; }))
      << log();
  kill(RankDir(rank_path(1)).read_process().value().id.pid, SIGKILL);
  EXPECT_EQ(wait_over(1).exit_code(), 137) << log();
  const size_t seen = coordinator_.locked([](const Fake& fake) { return fake.heartbeats().size(); });
  EXPECT_TRUE(coordinator_.wait([seen](const Fake& fake) { return fake.heartbeats().size() >= seen + 3; })) << log();
  EXPECT_EQ(coordinator_.locked([](const Fake& fake) { return fake.status(2); }), nullptr) << log();
  coordinator_.fall_silent(false);
  EXPECT_TRUE(wait_running(2)) << log();
}

TEST_F(WorkerTest, OutputOfAnEndedEpochCountsAsShipped) {
  coordinator_.end_epoch(1);
  start_worker();
  coordinator_.assign({assignment("step:2 print:late exit:1")});
  EXPECT_EQ(wait_over().exit_code(), 1) << log();
}

using Leaving = v1::HeartbeatRequest;

TEST_F(WorkerTest, StopsItsRanksOnExitWhenAsked) {
  start_worker({"--stop-ranks-on-exit"});
  coordinator_.assign({assignment("started run", 1, 0), assignment("ignore_term print:deaf hang", 1, 1)});
  ASSERT_TRUE(wait_events(3) && wait_running(1, 1)) << log();
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.output(1, 1).log == "deaf\n"; })) << log();
  const int stubborn = RankDir(rank_path(1, 1)).read_process().value().id.pid;
  kill(pid_, SIGTERM);
  EXPECT_TRUE(coordinator_.wait([](const Fake& fake) {
    const auto* status = fake.status(1, 0);
    return status != nullptr && status->exit_code() == 10 && status->output_shipped();
  })) << log();
  coordinator_.locked([](const Fake& fake) { EXPECT_EQ(fake.heartbeats().back().leave(), Leaving::ENDING); });
  kill(stubborn, SIGKILL);  // Rather than wait for the grace of 10 seconds.
  EXPECT_EQ(wait_worker(), 0);
  EXPECT_FALSE(runs(stubborn));
  coordinator_.locked([](const Fake& fake) {  // Its last word: all is over, and nothing of it is left.
    EXPECT_EQ(fake.heartbeats().back().leave(), Leaving::GONE);
    EXPECT_EQ(fake.status(1, 1)->state(), v1::RankPlacement::EXITED);
    EXPECT_TRUE(fake.receipt(1)->clean());
  });
  EXPECT_EQ(log().find("did not hear"), std::string::npos) << log();
}

TEST_F(WorkerTest, WhileItEndsItStartsNothingAndStillAnswersStops) {
  start_worker({"--stop-ranks-on-exit"});
  coordinator_.assign({assignment("ignore_term started hang", 1)});
  ASSERT_TRUE(wait_events(1) && wait_running()) << log();
  kill(pid_, SIGTERM);
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.heartbeats().back().leave() == Leaving::ENDING; }))
      << log();
  // What was given to it in between is not started, and is over as soon as it is called off.
  coordinator_.assign({assignment("ignore_term started hang", 1), assignment("hang", 2, 1)});
  coordinator_.assign({assignment("ignore_term started hang", 1), assignment("hang", 2, 1, v1::Assignment::STOP)});
  EXPECT_EQ(wait_over(2, 1).message(), "stopped before it was started") << log();
  kill(RankDir(rank_path(1)).read_process().value().id.pid, SIGKILL);
  EXPECT_EQ(wait_worker(), 0) << log();
}

TEST_F(WorkerTest, WithoutStopRanksOnExitItSaysNoGoodbye) {
  start_worker();
  coordinator_.assign({assignment("started hang", 1)});
  ASSERT_TRUE(wait_running()) << log();
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait_worker(), 0) << log();
  coordinator_.locked([](const Fake& fake) {
    for (const auto& one : fake.heartbeats()) EXPECT_EQ(one.leave(), Leaving::LEAVE_UNSPECIFIED);
  });
}

TEST_F(WorkerTest, ARevokedNodeStopsItsRanksAndStartsNoneUntilItIsLetInAgain) {
  start_worker({"--stop-grace", "600"});
  coordinator_.assign({assignment("started run", 1, 0)});
  ASSERT_TRUE(wait_events(1) && wait_running()) << log();
  coordinator_.revoke(true);
  EXPECT_TRUE(eventually([&] { return RankDir(rank_path(1)).read_exit().has_value(); })) << log();
  EXPECT_EQ(RankDir(rank_path(1)).read_exit()->exit_code, 10);  // By SIGTERM: it could save, but not publish.
  coordinator_.assign({assignment("started hang", 2, 0)});
  coordinator_.revoke(false);
  EXPECT_TRUE(wait_running(2)) << log();
  EXPECT_EQ(log().find("this node is revoked"), log().rfind("this node is revoked")) << log();  // Once.
}

TEST_F(WorkerTest, OnExitTheGraceIsTheOneOfTheJob) {
  start_worker({"--stop-ranks-on-exit", "--stop-grace", "600"});
  v1::Assignment one = assignment("ignore_term started hang");
  one.mutable_plan()->mutable_spec()->mutable_checkpoint()->set_stop_grace_seconds(1);
  coordinator_.assign({one});
  ASSERT_TRUE(wait_events(1) && wait_running()) << log();
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait_worker(), 0) << log();
  EXPECT_EQ(wait_over().exit_code(), 137) << log();
}

TEST_F(WorkerTest, MetricsFollowARankAndGoWithIt) {
  start_worker();
  coordinator_.assign({assignment("started step:4 hang")});
  ASSERT_TRUE(wait_events(5)) << log();
  std::string page;
  EXPECT_TRUE(eventually([&] {
    page = http_get("/metrics");
    return page.find("telar_worker_connected 1\n") != std::string::npos &&
           page.find("telar_worker_ranks{state=\"running\"} 1\n") != std::string::npos;
  })) << page;
  EXPECT_THAT(page, HasSubstr("telar_loss{job_id=\"j1\",rank=\"0\"} 1.25\n"));
  EXPECT_THAT(page, HasSubstr("telar_steps_total{job_id=\"j1\",rank=\"0\"} 4\n"));
  EXPECT_THAT(page, HasSubstr("telar_tokens_total{job_id=\"j1\",rank=\"0\"} 2000\n"));  // Half of 4 x 1000.
  EXPECT_THAT(http_get("/healthz"), HasSubstr("200 OK"));
  coordinator_.assign({});
  EXPECT_TRUE(eventually([&] { return http_get("/metrics").find("job_id") == std::string::npos; }));
  EXPECT_THAT(http_get("/metrics"), HasSubstr("telar_worker_rank_exits_total{class=\"crash\"} 1\n"));
}

TEST_F(WorkerTest, TwoDaemonsOnOneStateDirectoryAreRefused) {
  start_worker();
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return !fake.heartbeats().empty(); })) << log();
  std::vector<std::string> second = {bin_dir() + "/telar-worker", "--coordinator", coordinator_.address(), "--state",
                                     state_path()};
  EXPECT_EQ(wait_process(spawn(second, root_ + "/second.log")), 4);
  EXPECT_EQ(read_file(root_ + "/second.log").value_or(""), "telar-worker: --state: another telar-worker already uses " +
                                                               state_path() + "; give each its own directory\n");
}

TEST_F(WorkerTest, BadOptionsAreOneLineAndExitCode2) {
  start_worker();
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"--coordinator", "nowhere"},
                                              {"--cpu-devices", "0"},
                                              {"--nvlink-domain-size", "0"},
                                              {"--http", "127.0.0.1:99999"},
                                              {"--node", "a b"},
                                              {"--device-kind", "tpu"},
                                              {"--nonsense"}}) {
    std::vector<std::string> arguments = {bin_dir() + "/telar-worker"};
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    const std::string said = root_ + "/bad.log";
    std::filesystem::remove(said);
    EXPECT_EQ(wait_process(spawn(arguments, said)), 2) << bad[0];
    const std::string text = read_file(said).value_or("");
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_THAT(text, HasSubstr(bad[0])) << text;
  }
}

TEST_F(WorkerTest, AnHttpPortInUseIsExitCode3) {
  start_worker();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(root_ + "/ports.json"); })) << log();
  std::vector<std::string> second = {bin_dir() + "/telar-worker",
                                     "--state",
                                     root_ + "/other",
                                     "--device-kind",
                                     "cpu",
                                     "--http",
                                     coordinator_.address(),
                                     "--spawner-idle",
                                     "0.1"};
  EXPECT_EQ(wait_process(spawn(second, root_ + "/second.log")), 3);
  EXPECT_THAT(read_file(root_ + "/second.log").value_or(""), HasSubstr(coordinator_.address()));
}

TEST_F(WorkerTest, HeartbeatsTellHowARankGetsOn) {
  start_worker();
  coordinator_.assign({assignment("flight paced:40:3 hang")});
  const auto pace = [](const Fake& fake) {
    const v1::RankStatus* status = fake.status(1);
    return status == nullptr ? v1::RankPace() : status->pace();
  };
  ASSERT_TRUE(coordinator_.wait([&](const Fake& fake) {
    return pace(fake).step() == 40 && pace(fake).silent_seconds() > 0.5 &&
           pace(fake).activity() == v1::RankPace::TRAINING;
  })) << log();
  const v1::RankPace last = coordinator_.locked(pace);
  EXPECT_NEAR(last.step_seconds(), 0.010, 1e-9);
  EXPECT_NEAR(last.own_seconds(), 0.005, 1e-9);
  EXPECT_NEAR(last.slowest_seconds(), 0.010, 1e-9);
  // A pace that changes is no reason for a heartbeat: they come at their interval.
  const size_t before = coordinator_.locked([](const Fake& fake) { return fake.heartbeats().size(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  EXPECT_LE(coordinator_.locked([](const Fake& fake) { return fake.heartbeats().size(); }), before + 8);
}

// A signal takes a moment.
bool is_stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  return stat.find(") T ") != std::string::npos;
}

TEST_F(WorkerTest, AnswersForARankThatIsStopped) {
  start_worker();
  coordinator_.assign({assignment("flight step:1 hang")});
  ASSERT_TRUE(wait_events(1)) << log();
  // Events and heartbeats come on ways of their own.
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) {
    return fake.status(1) != nullptr && fake.status(1)->pid() > 0;
  })) << log();
  const int pid = coordinator_.locked([](const Fake& fake) { return fake.status(1)->pid(); });
  kill(pid, SIGSTOP);
  for (int i = 0; i < 1000 && !is_stopped(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  v1::FlightWish wish, stranger;
  wish.set_job(kJob);
  wish.set_epoch(1);
  stranger.set_job(kJob);
  stranger.set_epoch(7);
  coordinator_.wish({stranger, wish});
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return !fake.flight_reports().empty(); })) << log();
  coordinator_.wish({});
  const auto report = coordinator_.locked([](const Fake& fake) { return fake.flight_reports().front(); });
  EXPECT_EQ(report.node(), "node-a");
  EXPECT_EQ(report.epoch(), 1u);
  EXPECT_EQ(report.record().process(), "stopped");
  ASSERT_EQ(report.record().entries_size(), 2);
  EXPECT_EQ(report.record().entries(1).state(), v1::FlightEntry::RUNNING);
}

TEST_F(WorkerTest, WritesDownWhatIsWantedOfItsRanks) {
  start_worker();
  coordinator_.assign({assignment("step:1 hang")});
  ASSERT_TRUE(wait_events(1)) << log();
  v1::TraceWish wish, stranger;
  wish.set_job(kJob);
  wish.set_epoch(1);
  wish.add_steps(40);
  stranger = wish;
  stranger.set_epoch(7);
  coordinator_.wish({}, {stranger, wish});
  const std::string path = state_path() + "/ranks/j1/1/0/wishes.json";
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(path); })) << log();
  EXPECT_EQ(read_file(path).value(), "{\"trace_steps\":[\"40\"]}\n");
}

}  // namespace
}  // namespace telar::agent
