// What a daemon tells of its devices and of the ends of its ranks.
#include <sys/stat.h>

#include <fstream>

#include <gmock/gmock.h>

#include "tests/worker/agent/worker_fixture.h"

namespace telar::agent {
namespace {

using testing::HasSubstr;

class WorkerHealthTest : public WorkerTest {
 protected:
  void play(const std::string& script) {
    std::ofstream(root_ + "/nvml.new") << script;
    std::filesystem::rename(root_ + "/nvml.new", root_ + "/nvml");
  }
  // With a driver's library that plays the file.
  void start_probed(std::vector<std::string> more = {}) {
    setenv("TELAR_FAKE_NVML", (root_ + "/nvml").c_str(), 1);
    std::vector<std::string> options = {"--probe", "on", "--nvml", bin_dir() + "/libfake_nvml.so"};
    options.insert(options.end(), more.begin(), more.end());
    start_worker(options);
    unsetenv("TELAR_FAKE_NVML");
  }
  bool wait_health(uint32_t index, const std::function<bool(const v1::DeviceHealth&)>& condition) {
    return coordinator_.wait([&](const Fake& fake) {
      const v1::DeviceHealth* health = fake.health(index);
      return health != nullptr && condition(*health);
    });
  }
  static uint64_t count(const v1::DeviceHealth& health, const std::string& code) {
    for (const v1::DeviceFault& fault : health.faults()) {
      if (fault.code() == code) return fault.count();
    }
    return 0;
  }
  // The receipt of an epoch; waits for it.
  v1::Receipt wait_receipt(uint64_t epoch = 1) {
    v1::Receipt receipt;
    EXPECT_TRUE(coordinator_.wait([&](const Fake& fake) {
      if (fake.receipt(epoch) == nullptr) return false;
      receipt = *fake.receipt(epoch);
      return true;
    })) << log();
    return receipt;
  }
};

TEST_F(WorkerHealthTest, AnEndIsToldOfWhenNothingIsLeft) {
  start_worker();
  coordinator_.assign({assignment("hang", 1, 0), assignment("fork finish exit:0", 1, 1)});
  wait_over(1, 1);
  EXPECT_TRUE(wait_running(1, 0));
  coordinator_.locked([](const Fake& fake) { EXPECT_EQ(fake.receipt(1), nullptr); });  // One of two still runs.
  coordinator_.assign({assignment("hang", 1, 0, v1::Assignment::STOP, 100), assignment("hang", 1, 1)});
  const v1::Receipt receipt = wait_receipt();
  EXPECT_EQ(receipt.job(), kJob);
  EXPECT_TRUE(receipt.clean());
  EXPECT_FALSE(runs(read_pid(rank_path(1, 1) + "/grandchild")));
}

TEST_F(WorkerHealthTest, WhatWasNeverHereIsCleanToo) {
  start_worker();
  coordinator_.assign({assignment("hang", 4, 0, v1::Assignment::STOP)});
  EXPECT_TRUE(wait_receipt(4).clean());
}

TEST_F(WorkerHealthTest, WhoDroppedEveryTraceOfItsRankIsFoundByTheDevice) {
  std::ofstream(root_ + "/nvidia0") << "a device";
  start_worker({"--device-files", root_ + "/nvidia"});
  coordinator_.assign({assignment("hold:" + root_ + "/nvidia0 escape ignore_term hang", 1, 0)});
  ASSERT_TRUE(wait_running());
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(rank_path() + "/escaped"); })) << log();
  const int escaped = read_pid(rank_path() + "/escaped");
  ASSERT_TRUE(runs(escaped));
  coordinator_.assign({assignment("hang", 1, 0, v1::Assignment::STOP, 100)});
  EXPECT_TRUE(wait_receipt().clean()) << log();
  EXPECT_FALSE(runs(escaped));
}

TEST_F(WorkerHealthTest, WhatDoesNotDieIsNamedAndKeepsItsDeviceUntilItDoes) {
  std::ofstream(root_ + "/no_kill") << "";
  setenv("TELAR_FAIL_KILL", (root_ + "/no_kill").c_str(), 1);
  start_worker({"--residue-after", "0.5"});
  unsetenv("TELAR_FAIL_KILL");
  coordinator_.assign({assignment("ignore_term print:deaf hang", 1, 0)});
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.output(1).log == "deaf\n"; })) << log();
  const int pid = RankDir(rank_path()).read_process().value().id.pid;
  coordinator_.assign({assignment("hang", 1, 0, v1::Assignment::STOP, 100)});
  const v1::RankStatus status = wait_over();
  EXPECT_EQ(status.exit_code(), 137);
  const v1::Receipt left = wait_receipt();
  EXPECT_FALSE(left.clean());
  ASSERT_EQ(left.residues_size(), 1);
  EXPECT_EQ(left.residues(0).pid(), pid);
  EXPECT_EQ(left.residues(0).device().index(), 0u);
  EXPECT_EQ(left.residues(0).message(), "cpu:0: pid " + std::to_string(pid) + " does not die of SIGKILL");

  // Nothing starts there, and it is told of for as long as it is there, whatever the coordinator names.
  coordinator_.assign({assignment("hang", 2, 0), assignment("hang", 2, 1)});
  EXPECT_TRUE(wait_running(2, 1));
  EXPECT_TRUE(coordinator_.wait([](const Fake& fake) { return fake.heartbeats().size() > 20; }));
  coordinator_.locked([](const Fake& fake) {
    EXPECT_EQ(fake.status(2, 0), nullptr);
    ASSERT_NE(fake.receipt(1), nullptr);
    EXPECT_FALSE(fake.receipt(1)->clean());
  });
  std::filesystem::remove(root_ + "/no_kill");
  EXPECT_TRUE(wait_running(2, 0)) << log();
  EXPECT_FALSE(runs(pid));
}

TEST_F(WorkerHealthTest, MemoryThatIsNotGivenBackIsLeftBehind) {
  play("devices 2\nused 0 1000\n");
  start_probed({"--residue-after", "2.5"});
  ASSERT_TRUE(wait_health(0, [](const auto& health) { return health.used_bytes() == 1000; })) << log();
  coordinator_.assign({assignment("finish exit:0", 1, 0)});
  play("devices 2\nused 0 5000000000\n");
  v1::Receipt receipt = wait_receipt();
  EXPECT_FALSE(receipt.clean());
  ASSERT_EQ(receipt.residues_size(), 1);
  EXPECT_EQ(receipt.residues(0).message(), "cpu:0: 4768 MiB more in use than before the rank started");
  play("devices 2\nused 0 2000\n");
  EXPECT_TRUE(
      coordinator_.wait([](const Fake& fake) { return fake.receipt(1) != nullptr && fake.receipt(1)->clean(); }));
}

TEST_F(WorkerHealthTest, FaultsAreCountedByTheirCode) {
  play("devices 2\nlink 1 0 1\n");
  start_probed();
  ASSERT_TRUE(wait_health(1, [](const auto& health) { return health.state() == v1::DeviceHealth::HEALTHY; })) << log();
  play("devices 2\nlink 1 0 0\nxid 0 79\nxid 0 31\nxid 0 31\necc 1 1\n");
  EXPECT_TRUE(
      wait_health(0, [](const auto& health) { return count(health, "xid-79") == 1 && count(health, "xid-31") == 2; }));
  EXPECT_TRUE(wait_health(1, [](const auto& health) {
    return count(health, "ecc-uncorrected") == 1 && count(health, "nvlink-0-down") == 1 &&
           health.state() == v1::DeviceHealth::FAILED;
  })) << log();
  const std::string page = http_get("/metrics");
  EXPECT_THAT(page, HasSubstr("telar_device_faults_total{code=\"xid-31\",device=\"cpu:0\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("telar_telemetry_stale 0\n"));
  EXPECT_THAT(http_get("/readyz"), HasSubstr("200 OK"));
}

TEST_F(WorkerHealthTest, ADriverThatDoesNotAnswerHoldsUpNothing) {
  play("devices 2\n");
  start_probed({"--probe-deadline", "1.5"});
  coordinator_.assign({assignment("started run", 1, 0)});
  ASSERT_TRUE(wait_health(0, [](const auto& health) { return health.state() == v1::DeviceHealth::HEALTHY; })) << log();
  ASSERT_TRUE(wait_events(3));
  play("devices 2\nblock\n");
  ASSERT_TRUE(wait_health(0, [](const auto& health) { return health.state() == v1::DeviceHealth::STALE; })) << log();
  EXPECT_THAT(http_get("/readyz"), HasSubstr("telemetry is stale"));
  EXPECT_THAT(http_get("/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(http_get("/metrics"), HasSubstr("telar_telemetry_stale 1\n"));
  const size_t beats = coordinator_.locked([](const Fake& fake) { return fake.heartbeats().size(); });
  const size_t events = coordinator_.locked([](const Fake& fake) { return fake.output(1).events.size(); });
  EXPECT_TRUE(coordinator_.wait([&](const Fake& fake) { return fake.heartbeats().size() > beats + 5; }));
  ASSERT_TRUE(wait_events(events + 100));
  play("devices 2\n");
  EXPECT_TRUE(wait_health(0, [](const auto& health) { return health.state() == v1::DeviceHealth::HEALTHY; })) << log();
  EXPECT_THAT(http_get("/metrics"), HasSubstr("telar_telemetry_stale 0\n"));
}

TEST_F(WorkerHealthTest, AProbeThatCannotStartIsStale) {
  play("devices 2\n");
  start_worker({"--probe", "on", "--nvml", root_ + "/no_such.so"});
  EXPECT_TRUE(wait_health(1, [](const auto& health) { return health.state() == v1::DeviceHealth::STALE; })) << log();
}

TEST_F(WorkerHealthTest, ALogThatNobodyTakesKeepsToItsSize) {
  start_worker({"--rank-log-limit", "0.5"});
  ASSERT_TRUE(coordinator_.wait([](const Fake& fake) { return !fake.heartbeats().empty(); }));
  coordinator_.set_full(true);
  coordinator_.assign({assignment("bytes:4000000 print:end run", 1, 0)});
  ASSERT_TRUE(wait_events(3)) << log();
  EXPECT_TRUE(eventually([&] {
    struct stat info {};
    return stat((rank_path() + "/log").c_str(), &info) == 0 && info.st_size > 4'000'000 &&
           info.st_blocks * 512 < 800'000;
  })) << log();
  coordinator_.set_full(false);
  coordinator_.assign({assignment("run", 1, 0, v1::Assignment::STOP)});
  wait_over();
  const Fake::Output output = coordinator_.locked([](const Fake& fake) { return fake.output(1); });
  EXPECT_GT(output.missing, 3'000'000u);
  EXPECT_EQ(output.log.size(), std::filesystem::file_size(rank_path() + "/log"));
  EXPECT_EQ(output.log_gaps, 0);
  EXPECT_THAT(output.log, HasSubstr("end\nstep 1\n"));
  EXPECT_THAT(http_get("/metrics"), HasSubstr("telar_worker_log_lost_bytes_total " + std::to_string(output.missing)));
}

TEST_F(WorkerHealthTest, ACoordinatorWithoutRoomForALogDoesNotHoldTheEnd) {
  coordinator_.set_full(true);
  start_worker({"--log-patience", "0.5"});
  coordinator_.assign({assignment("print:lost finish exit:0", 1, 0)});
  EXPECT_TRUE(wait_over().finished()) << log();
}

}  // namespace
}  // namespace telar::agent
