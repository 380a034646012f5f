// A job manager on a real database, a clock that the test moves, and two workers of two CPU devices each.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/errors.h"
#include "server/jobs/job_manager.h"
#include "tests/fakes/fake_clock.h"
#include "tests/server/jobs/fake_worker.h"
#include "tests/server/scratch.h"

namespace telar::tests {

class ManagerTest : public testing::Test {
 protected:
  void SetUp() override { open(); }

  // Opens, or opens again as after a kill -9: all that was in memory is gone.
  void open() {
    manager_.reset();
    store_.reset();
    auto store = server::store::open_sqlite({.path = scratch_.path("db")});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::move(*store);
    auto manager = server::jobs::JobManager::open({.run_root = run_root_, .rendezvous_address = "127.0.0.1:7070"},
                                                  &clock_, store_.get(), &logs_, nullptr);
    ASSERT_TRUE(manager.ok()) << manager.status();
    manager_ = std::move(*manager);
  }

  void connect() {
    ASSERT_TRUE(a_.register_at(*manager_).ok());
    ASSERT_TRUE(b_.register_at(*manager_).ok());
    beat();
  }
  void beat() {
    ASSERT_TRUE(a_.beat(*manager_).ok());
    ASSERT_TRUE(b_.beat(*manager_).ok());
  }
  // Rounds of scheduler and heartbeats, until all that follows by itself has happened.
  void run() {
    for (int i = 0; i < 4; ++i) {
      manager_->tick();
      beat();
    }
  }
  // Time passes; both workers go on with their heartbeats.
  void pass(std::chrono::seconds time) {
    for (; time.count() > 0; time -= std::chrono::seconds(1)) {
      clock_.advance(std::chrono::seconds(1));
      beat();
      manager_->tick();
    }
  }
  // Time passes for `worker` alone; the other one is silent.
  void pass_with(FakeWorker& worker, std::chrono::seconds time) {
    for (; time.count() > 0; time -= std::chrono::seconds(1)) {
      clock_.advance(std::chrono::seconds(1));
      ASSERT_TRUE(worker.beat(*manager_).ok());
      manager_->tick();
    }
  }

  std::string submit(const v1::JobSpec& spec, const std::string& request_id = "") {
    v1::CreateJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    auto job = manager_->create(request);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->name() : "";
  }
  // A job that runs; of four ranks, 0 and 1 are on a, 2 and 3 on b.
  std::string running(const v1::JobSpec& spec = small_spec(4)) {
    connect();
    const std::string name = submit(spec);
    run();
    EXPECT_EQ(state(name), "RUNNING");
    return name;
  }
  absl::StatusOr<v1::Job> cancel(const std::string& name, const std::string& request_id = "") {
    v1::CancelJobRequest request;
    request.set_name(name);
    request.set_request_id(request_id);
    return manager_->cancel(request);
  }
  v1::Job get(const std::string& name) { return manager_->get(name).value(); }
  std::string state(const std::string& name) { return v1::Job::State_Name(get(name).state()); }
  FakeWorker& worker_of(const std::string& name) { return get(name).placement(0).node() == "a" ? a_ : b_; }
  FakeWorker& other_than(const FakeWorker& worker) { return &worker == &a_ ? b_ : a_; }
  // "QUEUED STARTING ": all states that the job's history goes through.
  std::string path(const std::string& name) {
    std::string text;
    const auto page = manager_->events(name, 0, 1000);
    for (const v1::JobEvent& event : page->events) {
      if (event.has_state_change()) text += v1::Job::State_Name(event.state_change().to()) + " ";
    }
    return text;
  }
  uint32_t free_devices() {
    uint32_t free = 0;
    for (const v1::Node& node : manager_->nodes()) {
      for (const v1::DeviceStatus& device : node.devices()) free += device.job().empty() ? 1 : 0;
    }
    return free;
  }
  absl::StatusOr<v1::ReportEventsResponse> report(const std::string& job, uint64_t epoch, uint64_t first_line,
                                                  const std::vector<v1::RankEvent>& events) {
    v1::ReportEventsRequest request;
    request.set_node(get(job).placement_size() > 0 ? get(job).placement(0).node() : "a");
    request.set_job(job);
    request.set_epoch(epoch);
    request.set_first_line(first_line);
    for (const v1::RankEvent& event : events) *request.add_events() = event;
    return manager_->report_events(request);
  }
  static v1::RankEvent step_event(uint64_t step, double loss) {
    v1::RankEvent event;
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_loss(loss);
    event.mutable_step()->set_seconds(2);
    return event;
  }

  Scratch scratch_;
  std::string run_root_ = "/runs";
  fakes::FakeClock clock_;
  server::store::LogStore logs_{scratch_.path("logs")};
  std::unique_ptr<server::store::Store> store_;
  std::unique_ptr<server::jobs::JobManager> manager_;
  FakeWorker a_{"a", 2};
  FakeWorker b_{"b", 2};
};

}  // namespace telar::tests
