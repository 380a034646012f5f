// Devices that fail: quarantine, the end of what runs there, and how they come back.
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;
using tests::FakeWorker;
using tests::small_spec;

class Devices : public tests::ManagerTest {
 protected:
  std::string quarantine(const std::string& node, int index) {
    for (const v1::Node& one : manager_->nodes()) {
      if (one.name() == node) return one.devices(index).quarantine();
    }
    return "no such node";
  }
  absl::Status release(const std::string& node, uint32_t index) {
    v1::ReleaseDeviceRequest request;
    request.set_name(node);
    request.set_kind(v1::ResourceSpec::CPU);
    request.set_index(index);
    return manager_->release_device(request).status();
  }
  std::string condition(const std::string& name, const std::string& type) {
    std::string all;
    const v1::Job job = get(name);
    for (const v1::Condition& one : job.conditions()) {
      if (one.type() == type) all += one.message() + "\n";
    }
    return all;
  }
};

TEST_F(Devices, AFailedDeviceMovesItsJobAndStaysAway) {
  const std::string name = running(small_spec(1));
  FakeWorker& on = worker_of(name);
  const std::string node = get(name).placement(0).node();
  const uint32_t index = get(name).placement(0).device().index();
  on.obeys_stop = false;  // A process that waits for a dead device hears no signal.
  on.strike(index, "xid-79");
  beat();
  EXPECT_EQ(state(name), "RESTARTING");
  EXPECT_EQ(quarantine(node, static_cast<int>(index)), "xid-79 (GPU has fallen off the bus)");
  const auto answer = manager_->assignments(node);
  ASSERT_EQ(answer.assignments_size(), 1);
  EXPECT_EQ(answer.assignments(0).desired(), v1::Assignment::STOP);
  EXPECT_EQ(answer.assignments(0).grace().seconds(), 2);
  FakeWorker::die(on.rank(name, 1, 0), 137, v1::CRASH, "killed by signal 9");
  on.obeys_stop = true;
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(get(name).restarts(), 0u);
  EXPECT_EQ(get(name).node_restarts(), 1u);
  const bool same = get(name).placement(0).node() == node && get(name).placement(0).device().index() == index;
  EXPECT_FALSE(same);
  EXPECT_NE(condition(name, "DEVICE_FAULT").find("xid-79"), std::string::npos);
  run();
  EXPECT_EQ(get(name).epoch(), 2u);  // Told once, it is judged once.
  EXPECT_EQ(get(name).node_restarts(), 1u);
}

TEST_F(Devices, TheProcessesOwnWordsAreOnlyTheEcho) {
  v1::JobSpec spec = small_spec(1);
  spec.mutable_restart()->set_max_restarts(1);
  const std::string name = running(spec);
  FakeWorker& on = worker_of(name);
  FakeWorker::die(on.rank(name, 1, 0), 29, v1::INTERNAL, "CUDA error: uncorrectable ECC error encountered");
  on.rank(name, 1, 0).set_output_shipped(false);
  on.obeys_stop = false;
  beat();
  EXPECT_EQ(state(name), "RESTARTING");
  on.strike(get(name).placement(0).device().index(), "ecc-uncorrected");
  on.rank(name, 1, 0).set_output_shipped(true);
  on.obeys_stop = true;
  beat();
  EXPECT_EQ(get(name).restarts(), 0u);
  EXPECT_EQ(get(name).node_restarts(), 1u);
}

TEST_F(Devices, TheApplicationsFaultIsNotedAndNothingElse) {
  const std::string name = running(small_spec(1));
  FakeWorker& on = worker_of(name);
  const std::string node = get(name).placement(0).node();
  const uint32_t index = get(name).placement(0).device().index();
  on.strike(index, "xid-31");
  on.strike(index, "xid-31");
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 1u);
  EXPECT_EQ(quarantine(node, static_cast<int>(index)), "");
  EXPECT_NE(condition(name, "DEVICE_FAULT").find("xid-31 (GPU memory page fault), 2 times; the application's"),
            std::string::npos)
      << condition(name, "DEVICE_FAULT");
}

TEST_F(Devices, AContainedErrorFailsTheJobButNotTheDevice) {
  const std::string name = running(small_spec(1));
  worker_of(name).strike(get(name).placement(0).device().index(), "xid-94");
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).node_restarts(), 1u);
  EXPECT_EQ(free_devices(), 3u);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(quarantine("a", i) + quarantine("b", i), "");
}

TEST_F(Devices, QuarantineOutlivesTheCoordinatorAndEndsByHand) {
  connect();
  a_.strike(1, "ecc-uncorrected");
  beat();
  const std::string name = submit(small_spec(4));
  run();
  EXPECT_EQ(state(name), "QUEUED");
  open();
  connect();
  run();
  EXPECT_EQ(quarantine("a", 1), "ecc-uncorrected (uncorrected memory error)");
  EXPECT_EQ(state(name), "QUEUED");
  a_.reboot("2");  // It counts from nothing again.
  a_.health.clear();
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  run();
  EXPECT_NE(quarantine("a", 1), "");

  EXPECT_TRUE(absl::IsNotFound(release("c", 1)));
  EXPECT_TRUE(absl::IsNotFound(release("a", 7)));
  EXPECT_TRUE(release("a", 1).ok());
  EXPECT_TRUE(release("a", 1).ok());
  EXPECT_EQ(quarantine("a", 1), "");
  run();
  EXPECT_EQ(state(name), "RUNNING");
  open();
  EXPECT_EQ(quarantine("a", 1), "no such node");
  connect();
  EXPECT_EQ(quarantine("a", 1), "");
}

TEST_F(Devices, WhatWasReleasedIsNotJudgedAgain) {
  connect();
  a_.strike(0, "xid-48");
  beat();
  EXPECT_NE(quarantine("a", 0), "");
  ASSERT_TRUE(release("a", 0).ok());
  run();
  open();
  connect();
  run();
  EXPECT_EQ(quarantine("a", 0), "");
  a_.strike(0, "xid-48");
  beat();
  EXPECT_NE(quarantine("a", 0), "");
}

TEST_F(Devices, AFaultThatHoldsCannotBeReleased) {
  connect();
  a_.strike(0, "gpu-lost");
  a_.health_of(0).set_state(v1::DeviceHealth::FAILED);
  beat();
  const absl::Status refused = release("a", 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_NE(refused.message().find("gpu-lost (the driver does not find it)"), std::string::npos) << refused;
  a_.health_of(0).set_state(v1::DeviceHealth::HEALTHY);
  beat();
  EXPECT_TRUE(release("a", 0).ok());
}

TEST_F(Devices, WhatAResetEndsComesBackByItself) {
  connect();
  a_.strike(0, "remap-pending");
  a_.health_of(0).set_state(v1::DeviceHealth::FAILED);
  beat();
  EXPECT_NE(quarantine("a", 0), "");
  a_.health_of(0).clear_faults();
  a_.health_of(0).set_state(v1::DeviceHealth::HEALTHY);
  beat();
  EXPECT_EQ(quarantine("a", 0), "");
}

TEST_F(Devices, AStaleDeviceGetsNothingNewButWhatRunsGoesOn) {
  const std::string first = running(small_spec(2));
  FakeWorker& on = worker_of(first);
  for (uint32_t i = 0; i < 2; ++i) {
    a_.health_of(i).set_state(v1::DeviceHealth::STALE);
    b_.health_of(i).set_state(v1::DeviceHealth::STALE);
  }
  beat();
  const std::string second = submit(small_spec(1));
  pass(seconds(20));
  EXPECT_EQ(state(first), "RUNNING");
  EXPECT_EQ(get(first).epoch(), 1u);
  EXPECT_EQ(state(second), "QUEUED");
  other_than(on).health_of(0).set_state(v1::DeviceHealth::HEALTHY);
  run();
  EXPECT_EQ(state(second), "RUNNING");
}

}  // namespace
}  // namespace telar::server::jobs
