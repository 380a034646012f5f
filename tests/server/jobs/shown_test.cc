// What people see of a placed job beside its state: how each rank gets on, memory, forecast.
#include <gmock/gmock.h>

#include <thread>

#include "server/jobs/forecaster.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::tests {
namespace {

using server::jobs::forecast_of;
using server::jobs::Forecaster;
using server::jobs::ForecastWish;
using std::chrono::seconds;

class Shown : public ManagerTest {
 protected:
  static v1::RankEvent memory_event(std::initializer_list<std::pair<const char*, uint64_t>> classes, bool started) {
    v1::RankEvent event;
    if (!started) event = step_event(3, 5);
    for (const auto& [name, bytes] : classes) {
      v1::MemoryUse& use = started ? *event.mutable_started()->add_memory() : *event.mutable_step()->add_memory();
      use.set_memory_class(name);
      use.set_bytes(bytes);
    }
    return event;
  }
  void tell(const std::string& job, uint32_t rank, uint64_t first_line, const v1::RankEvent& event) {
    v1::ReportEventsRequest request;
    const v1::Job now = get(job);
    request.set_node(now.placement(static_cast<int>(rank)).node());
    request.set_job(job);
    request.set_epoch(now.epoch());
    request.set_rank(rank);
    request.set_first_line(first_line);
    *request.add_events() = event;
    EXPECT_TRUE(manager_->report_events(request).ok());
  }
  static std::string memory_of(const v1::Job& job) {
    std::string text;
    for (const v1::MemoryUse& use : job.memory()) text += use.memory_class() + " " + std::to_string(use.bytes()) + ", ";
    return text;
  }
};

TEST_F(Shown, HowARankGetsOnAndHowOldThatIs) {
  const std::string name = running();
  EXPECT_FALSE(get(name).placement(3).has_progress());
  v1::RankPace& pace = *b_.rank(name, 1, 3).mutable_pace();
  pace.set_step(40);
  pace.set_step_seconds(2);
  pace.set_own_seconds(1.5);
  pace.set_silent_seconds(3);
  pace.set_activity(v1::RankPace::TRAINING);
  beat();
  clock_.advance(std::chrono::milliseconds(500));
  v1::RankProgress shown = get(name).placement(3).progress();
  EXPECT_EQ(shown.step(), 40u);
  EXPECT_EQ(shown.step_seconds(), 2);
  EXPECT_EQ(shown.own_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(shown.silent_seconds(), 3.5);
  EXPECT_FALSE(shown.hung());
  EXPECT_FALSE(shown.straggler());
  EXPECT_FALSE(get(name).placement(2).has_progress());
  b_.rank(name, 1, 3).mutable_pace()->set_silent_seconds(61);
  beat();
  EXPECT_TRUE(get(name).placement(3).progress().hung());
  a_.finish_all();
  b_.finish_all();
  run();
  ASSERT_EQ(state(name), "SUCCEEDED");
  EXPECT_FALSE(get(name).placement(3).has_progress());
}

TEST_F(Shown, AStragglerIsMarked) {
  const std::string name = running();
  for (const uint64_t step : {20, 30, 40, 50}) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      v1::RankPace& pace = *(rank < 2 ? a_ : b_).rank(name, 1, rank).mutable_pace();
      pace.set_step(step);
      pace.set_own_seconds(rank == 1 ? 1.5 : 1);
    }
    beat();
    clock_.advance(std::chrono::milliseconds(500));
    manager_->tick();
  }
  const v1::Job job = get(name);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(job.placement(rank).progress().straggler(), rank == 1) << rank;
}

TEST_F(Shown, MemoryIsTheMostOfAnyRankAndSurvivesARestartOfTheCoordinator) {
  const std::string name = running();
  tell(name, 0, 0, memory_event({{"weights", 100}, {"activations", 50}, {"host", 1000}}, true));
  tell(name, 2, 0, memory_event({{"weights", 80}, {"activations", 90}, {"grads", 0}}, true));
  tell(name, 2, 1, memory_event({{"context", 7}}, false));
  EXPECT_EQ(memory_of(get(name)), "weights 100, activations 90, host 1000, context 7, ");
  EXPECT_EQ(get(name).placement(0).progress().memory_bytes(), 150u);
  EXPECT_EQ(get(name).placement(2).progress().memory_bytes(), 177u);
  EXPECT_EQ(get(name).placement(1).progress().memory_bytes(), 0u);
  open();
  EXPECT_EQ(memory_of(get(name)), "weights 100, activations 90, host 1000, context 7, ");
  EXPECT_EQ(get(name).placement(2).progress().memory_bytes(), 177u);
}

TEST_F(Shown, MemoryIsThatOfTheLastEpoch) {
  const std::string name = running();
  tell(name, 0, 0, memory_event({{"weights", 100}}, true));
  FakeWorker::die(a_.rank(name, 1, 0), 139, v1::CRASH, "killed by signal 11");
  run();
  pass(seconds(3));
  run();
  ASSERT_EQ(state(name), "RUNNING");
  ASSERT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(memory_of(get(name)), "");
  EXPECT_EQ(get(name).placement(0).progress().memory_bytes(), 0u);
}

TEST_F(Shown, AForecastIsWantedOncePerEpochAndOfItsDevices) {
  EXPECT_FALSE(manager_->forecast_wanted());
  const std::string name = running();
  const auto wish = manager_->forecast_wanted();
  ASSERT_TRUE(wish);
  EXPECT_EQ(wish->epoch, 1u);
  ASSERT_EQ(wish->nodes.size(), 2u);
  EXPECT_EQ(wish->nodes[0].devices_size(), 2);
  EXPECT_FALSE(get(name).has_forecast());
  v1::JobForecast forecast;
  forecast.set_step_seconds(2);
  forecast.add_memory()->set_device_bytes(5);
  ForecastWish other = *wish;
  other.epoch = 9;
  manager_->set_forecast(other, forecast);  // It came too late.
  EXPECT_TRUE(manager_->forecast_wanted());
  manager_->set_forecast(*wish, forecast);
  EXPECT_FALSE(manager_->forecast_wanted());
  EXPECT_EQ(get(name).forecast().memory(0).device_bytes(), 5u);
  ASSERT_EQ(manager_->census().live.size(), 1u);
  EXPECT_EQ(manager_->census().live[0].forecast.memory_size(), 1);
  FakeWorker::die(a_.rank(name, 1, 0), 139, v1::CRASH, "killed by signal 11");
  run();
  pass(seconds(3));
  run();
  ASSERT_EQ(get(name).epoch(), 2u);
  EXPECT_FALSE(get(name).has_forecast());
  EXPECT_EQ(manager_->forecast_wanted()->epoch, 2u);
}

TEST_F(Shown, ThatThereIsNoneIsRemembered) {
  const std::string name = running();
  manager_->set_forecast(*manager_->forecast_wanted(), {});
  EXPECT_FALSE(manager_->forecast_wanted());
  EXPECT_FALSE(get(name).has_forecast());
}

TEST_F(Shown, TheForecastIsThatOfAPlan) {
  running();
  const auto wish = manager_->forecast_wanted();
  ASSERT_TRUE(wish);
  const auto forecast = forecast_of(wish->spec, wish->nodes);
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  EXPECT_GT(forecast->step_seconds(), 0);
  ASSERT_EQ(forecast->memory_size(), 1);
  uint64_t sum = 0;
  for (const v1::MemoryUse& use : forecast->memory(0).classes()) {
    EXPECT_GT(use.bytes(), 0u);
    EXPECT_NE(use.memory_class(), "reserved");  // Of the host nobody finds that.
    if (use.memory_class() != "host") sum += use.bytes();
  }
  EXPECT_EQ(forecast->memory(0).device_bytes(), sum);
  EXPECT_GT(sum, 0u);
  std::vector<v1::Node> unknown = wish->nodes;
  for (v1::Node& node : unknown) {
    for (auto& device : *node.mutable_devices()) {
      device.mutable_device()->set_kind(v1::ResourceSpec::GPU);
      device.mutable_device()->set_model("GPU of tomorrow");
    }
  }
  v1::JobSpec gpu = wish->spec;
  gpu.mutable_resources()->set_kind(v1::ResourceSpec::GPU);
  EXPECT_EQ(forecast_of(gpu, unknown).status().code(), absl::StatusCode::kFailedPrecondition);
  for (v1::Node& node : unknown) {
    for (auto& device : *node.mutable_devices()) device.mutable_device()->set_model("NVIDIA H200");
  }
  gpu.mutable_precision()->set_compute(v1::BF16);
  const auto on_gpus = forecast_of(gpu, unknown);
  ASSERT_TRUE(on_gpus.ok()) << on_gpus.status();
  EXPECT_EQ(on_gpus->memory(0).classes().rbegin()->memory_class(), "reserved");
}

TEST_F(Shown, TheThreadGivesEachPlacedJobItsForecast) {
  const std::string name = running(small_spec(2));
  const std::string second = submit(small_spec(2));
  run();
  const Forecaster forecaster(manager_.get());
  while (!get(name).has_forecast() || !get(second).has_forecast()) std::this_thread::yield();
  EXPECT_EQ(get(name).forecast().SerializeAsString(), get(second).forecast().SerializeAsString());
}

}  // namespace
}  // namespace telar::tests
