// Changes that are on their way to the store: nobody sees them early, nobody waits for another job's, none is lost.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using tests::small_spec;

// The store of the fixture behind a gate that can be shut, and a fault.
class GatedStore final : public store::Store {
 public:
  explicit GatedStore(store::Store* behind) : behind_(behind) {}

  absl::Status commit(const store::Batch& batch) override {
    const absl::Status fault = pass();
    return fault.ok() ? behind_->commit(batch) : fault;
  }
  absl::Status commit_all(const std::vector<store::Batch>& batches) override {
    const absl::Status fault = pass();
    if (whole_fault_ && batches.size() > 1) return absl::ResourceExhaustedError("too much at once");
    return fault.ok() ? behind_->commit_all(batches) : fault;
  }
  absl::StatusOr<std::vector<store::JobRow>> jobs() override { return behind_->jobs(); }
  absl::StatusOr<std::vector<store::EventRow>> events(const std::string& job, uint64_t after, int limit) override {
    return behind_->events(job, after, limit);
  }
  absl::StatusOr<uint64_t> next_line(const std::string& job, uint64_t epoch, uint32_t rank) override {
    ++lines_read_;
    if (reads_wait_) pass().IgnoreError();
    return behind_->next_line(job, epoch, rank);
  }
  absl::StatusOr<std::optional<std::string>> answer(const std::string& request) override {
    return behind_->answer(request);
  }
  absl::StatusOr<std::vector<store::SettingRow>> settings(const std::string& prefix) override {
    return behind_->settings(prefix);
  }

  void shut() { set(false, absl::OkStatus()); }
  void open(const absl::Status& fault = absl::OkStatus()) { set(true, fault); }
  // Until so many commits, or reads of a line, are at the gate.
  void wait_for(int count) {
    std::unique_lock<std::mutex> hold(mutex_);
    changed_.wait(hold, [&] { return waiting_ >= count; });
  }

  void shut_for_reads() {
    reads_wait_ = true;
    shut();
  }
  int lines_read() const { return lines_read_; }
  // More than one batch at once is refused.
  void refuse_many() { whole_fault_ = true; }

 private:
  absl::Status pass() {
    std::unique_lock<std::mutex> hold(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(hold, [this] { return open_; });
    --waiting_;
    return fault_;
  }
  void set(bool open, const absl::Status& fault) {
    std::lock_guard<std::mutex> hold(mutex_);
    open_ = open;
    fault_ = fault;
    changed_.notify_all();
  }

  store::Store* const behind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  absl::Status fault_;
  std::atomic<bool> whole_fault_{false};
  std::atomic<bool> reads_wait_{false};
  std::atomic<int> lines_read_{0};
  int waiting_ = 0;
};

class PendingChanges : public tests::ManagerTest {
 protected:
  void SetUp() override {
    tests::ManagerTest::SetUp();
    gate_ = std::make_unique<GatedStore>(store_.get());
    manager_ = *JobManager::open({.run_root = "/runs", .rendezvous_address = "127.0.0.1:7070"}, &clock_, gate_.get(),
                                 &logs_, nullptr);
  }
  void TearDown() override { manager_.reset(); }

  static v1::CreateJobRequest request(const std::string& id) {
    v1::CreateJobRequest create;
    *create.mutable_spec() = small_spec(1);
    create.mutable_spec()->mutable_resources()->set_wait_for_capacity(true);
    create.set_request_id(id);
    return create;
  }

  absl::StatusOr<v1::Node> release(const std::string& node, const std::string& request_id = "") {
    v1::ReleaseDeviceRequest request;
    request.set_name(node);
    request.set_kind(v1::ResourceSpec::CPU);
    request.set_request_id(request_id);
    return manager_->release_device(request);
  }
  std::string quarantine_of_a() { return manager_->nodes()[0].devices(0).quarantine(); }

  std::unique_ptr<GatedStore> gate_;
};

TEST_F(PendingChanges, ASubmitIsSeenOnceItIsStoredAndHoldsNobodyUp) {
  gate_->shut();
  std::vector<std::thread> submits;
  for (int i = 0; i < 3; ++i) {
    submits.emplace_back([&, i] { EXPECT_TRUE(manager_->create(request("r" + std::to_string(i))).ok()); });
  }
  gate_->wait_for(3);  // All at once: none waits for another.
  EXPECT_EQ(manager_->list({})->jobs_size(), 0);
  manager_->tick();
  gate_->open();
  for (std::thread& submit : submits) submit.join();
  EXPECT_EQ(manager_->list({})->jobs_size(), 3);
  open();
  EXPECT_EQ(manager_->list({})->jobs_size(), 3);
}

TEST_F(PendingChanges, ARepeatedSubmitWaitsForTheFirst) {
  gate_->shut();
  absl::StatusOr<v1::Job> first, again;
  std::thread one([&] { first = manager_->create(request("r")); });
  gate_->wait_for(1);
  std::thread two([&] { again = manager_->create(request("r")); });
  gate_->open();
  one.join();
  two.join();
  ASSERT_TRUE(first.ok() && again.ok()) << first.status() << again.status();
  EXPECT_EQ(first->SerializeAsString(), again->SerializeAsString());
  EXPECT_EQ(manager_->list({})->jobs_size(), 1);
}

TEST_F(PendingChanges, EqualRequestsAtOnceMakeOneJob) {
  constexpr int kThreads = 8, kRequests = 20;
  std::vector<std::map<int, std::string>> answers(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kRequests; ++i) {
        const auto job = manager_->create(request(std::to_string(i)));
        ASSERT_TRUE(job.ok()) << job.status();
        answers[static_cast<size_t>(thread)][i] = job->SerializeAsString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, answers[0]);
  EXPECT_EQ(manager_->list({})->jobs_size(), kRequests);
}

TEST_F(PendingChanges, WhatCannotBeStoredNeverWas) {
  gate_->shut();
  absl::Status status;
  std::thread submit([&] { status = manager_->create(request("r")).status(); });
  gate_->wait_for(1);
  gate_->open(absl::ResourceExhaustedError("disk full"));
  submit.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager_->list({})->jobs_size(), 0);
  gate_->open();
  EXPECT_TRUE(manager_->create(request("r")).ok());
  EXPECT_EQ(manager_->list({})->jobs_size(), 1);
}

TEST_F(PendingChanges, AStoreThatAnotherOneTookOverIsToBeAskedElsewhere) {
  gate_->open(absl::FailedPreconditionError("leads no more"));
  const absl::Status status = manager_->create(request("r")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(reason(status), "NOT_LEADER");
}

TEST_F(PendingChanges, ChangesOfOneJobComeOneAfterTheOther) {
  const std::string name = running(small_spec(1));
  gate_->shut();
  std::thread reporting([&] { EXPECT_TRUE(report(name, 1, 0, {step_event(1, 5), step_event(2, 4)}).ok()); });
  gate_->wait_for(1);
  EXPECT_EQ(get(name).progress().step(), 0u);
  std::thread cancelling([&] { EXPECT_TRUE(cancel(name).ok()); });
  gate_->open();
  reporting.join();
  cancelling.join();
  EXPECT_EQ(get(name).progress().step(), 2u);
  EXPECT_EQ(state(name), "CANCELLING");
  open();
  EXPECT_EQ(get(name).progress().step(), 2u);
  EXPECT_EQ(state(name), "CANCELLING");
}

TEST_F(PendingChanges, WhoWaitsForAJobHoldsNobodyElseUp) {
  const std::string name = running(small_spec(1));
  gate_->shut();
  std::thread reporting([&] { EXPECT_TRUE(report(name, 1, 0, {step_event(1, 5)}).ok()); });
  gate_->wait_for(1);
  std::vector<std::thread> waiting;  // All for that report.
  waiting.emplace_back([&] { EXPECT_TRUE(worker_of(name).beat(*manager_).ok()); });
  waiting.emplace_back([&] { EXPECT_TRUE(report(name, 1, 1, {step_event(2, 5)}).ok()); });
  waiting.emplace_back([&] { EXPECT_TRUE(manager_->put_key(name, 1, "k", "v").ok()); });
  waiting.emplace_back([&] { EXPECT_TRUE(manager_->commit_checkpoint(name, 1, 1).ok()); });
  for (int i = 0; i < 5; ++i) manager_->tick();
  EXPECT_EQ(get(name).progress().step(), 0u);
  std::thread submitting([&] { EXPECT_TRUE(manager_->create(request("r")).ok()); });
  gate_->wait_for(2);
  gate_->open();
  reporting.join();
  submitting.join();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(get(name).progress().step(), 2u);
  EXPECT_EQ(manager_->keys(name, 1)->at("k"), "v");
  EXPECT_EQ((*manager_->last_commit(name, 1))->step, 1u);
}

TEST_F(PendingChanges, ARoundOfTheSchedulerTakesInWhatIsOnItsWay) {
  const std::string name = running(small_spec(1));
  worker_of(name).finish_all();
  gate_->shut();
  std::thread beating([&] { EXPECT_TRUE(worker_of(name).beat(*manager_).ok()); });
  gate_->wait_for(1);
  EXPECT_EQ(state(name), "RUNNING");
  clock_.advance(std::chrono::seconds(100));
  std::thread ticking([&] { manager_->tick(); });  // Every lease is over, but the rank had ended before.
  gate_->open();
  beating.join();
  ticking.join();
  EXPECT_EQ(state(name), "SUCCEEDED");
}

TEST_F(PendingChanges, APlacementThatIsBeingStoredHoldsNobodyUp) {
  connect();
  const std::string name = submit(small_spec(2)), other = submit(small_spec(2));
  gate_->shut();
  std::thread ticking([&] { manager_->tick(); });
  gate_->wait_for(1);
  EXPECT_EQ(manager_->list({})->jobs_size(), 2);
  EXPECT_EQ(state(name), "QUEUED");  // Nobody sees it yet.
  EXPECT_EQ(free_devices(), 4u);
  absl::StatusOr<v1::Job> cancelled;
  std::thread cancelling([&] { cancelled = cancel(name); });  // Of that job: behind its placement.
  gate_->open();
  ticking.join();
  cancelling.join();
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(path(name), "QUEUED STARTING CANCELLING ");
  EXPECT_EQ(state(other), "STARTING");
  EXPECT_EQ(free_devices(), 0u);
}

TEST_F(PendingChanges, PlacementsThatDoNotFitTogetherAreStoredOneByOne) {
  connect();
  const std::string name = submit(small_spec(2)), other = submit(small_spec(2));
  gate_->refuse_many();
  manager_->tick();
  EXPECT_EQ(state(name), "STARTING");
  EXPECT_EQ(state(other), "STARTING");
  gate_->open(absl::ResourceExhaustedError("disk full"));
  EXPECT_FALSE(cancel(name).ok());
  EXPECT_EQ(state(name), "STARTING");
}

TEST_F(PendingChanges, AnArrayThatIsBeingStoredHoldsNobodyUp) {
  v1::CreateJobArrayRequest array;
  *array.mutable_spec() = request("").spec();
  array.mutable_spec()->mutable_array()->set_size(3);
  array.set_request_id("r");
  gate_->shut();
  absl::StatusOr<v1::CreateJobArrayResponse> first, again;
  std::thread one([&] { first = manager_->create_array(array); });
  std::thread two([&] { again = manager_->create_array(array); });
  gate_->wait_for(2);
  EXPECT_EQ(manager_->list({})->jobs_size(), 0);
  gate_->open();
  one.join();
  two.join();
  ASSERT_TRUE(first.ok() && again.ok()) << first.status() << again.status();
  EXPECT_EQ(first->SerializeAsString(), again->SerializeAsString());
  EXPECT_EQ(manager_->list({})->jobs_size(), 3);
}

TEST_F(PendingChanges, ACordonThatIsBeingStoredHoldsNobodyUp) {
  connect();
  gate_->shut();
  absl::StatusOr<v1::Node> first, again, opened;
  std::thread one([&] { first = manager_->set_scheduling("a", v1::Node::CORDONED, "fan", "cordon:1"); });
  gate_->wait_for(1);
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::OPEN);  // Nobody sees it yet.
  EXPECT_TRUE(b_.beat(*manager_).ok());
  manager_->tick();
  std::thread two([&] { again = manager_->set_scheduling("a", v1::Node::CORDONED, "fan", "cordon:1"); });
  gate_->open();
  one.join();
  two.join();
  ASSERT_TRUE(first.ok() && again.ok()) << first.status() << again.status();
  EXPECT_EQ(first->scheduling(), v1::Node::CORDONED);
  EXPECT_EQ(first->scheduling_reason(), "fan");
  EXPECT_EQ(first->SerializeAsString(), again->SerializeAsString());
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::CORDONED);
  open();
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::CORDONED);
}

TEST_F(PendingChanges, DecisionsAboutOneNodeComeOneAfterTheOther) {
  connect();
  gate_->shut();
  std::thread one([&] { EXPECT_TRUE(manager_->set_scheduling("a", v1::Node::DRAINING, "", "").ok()); });
  gate_->wait_for(1);
  std::thread two([&] { EXPECT_TRUE(manager_->set_scheduling("a", v1::Node::OPEN, "", "").ok()); });
  std::thread other([&] { EXPECT_TRUE(manager_->set_scheduling("b", v1::Node::CORDONED, "", "").ok()); });
  gate_->wait_for(2);  // That of b does not wait for that of a.
  gate_->open();
  for (std::thread* thread : {&one, &two, &other}) thread->join();
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::OPEN);
  EXPECT_EQ(manager_->nodes()[1].scheduling(), v1::Node::CORDONED);
  open();
  connect();
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::OPEN);
}

TEST_F(PendingChanges, ADecisionThatCannotBeStoredNeverWas) {
  connect();
  gate_->open(absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(manager_->set_scheduling("a", v1::Node::CORDONED, "", "cordon:1").status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::OPEN);
  gate_->open(absl::FailedPreconditionError("leads no more"));
  EXPECT_EQ(reason(manager_->set_scheduling("a", v1::Node::CORDONED, "", "cordon:1").status()), "NOT_LEADER");
  gate_->open();
  EXPECT_TRUE(manager_->set_scheduling("a", v1::Node::CORDONED, "", "cordon:1").ok());
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::CORDONED);
}

TEST_F(PendingChanges, AReleaseThatIsBeingStoredHoldsNobodyUpAndForgetsNoNewFault) {
  connect();
  a_.strike(0, "xid-79");
  beat();
  ASSERT_NE(quarantine_of_a(), "");
  a_.reboot("2");  // A new life of the worker: the fault is not there any more.
  a_.health.clear();
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  beat();
  gate_->shut();
  absl::StatusOr<v1::Node> first, again;
  std::thread releasing([&] { first = release("a", "r"); });
  gate_->wait_for(1);
  EXPECT_NE(quarantine_of_a(), "");  // Nobody sees it yet.
  EXPECT_TRUE(b_.beat(*manager_).ok());
  std::thread repeating([&] { again = release("a", "r"); });
  a_.strike(0, "xid-48");
  std::thread beating([&] { EXPECT_TRUE(a_.beat(*manager_).ok()); });
  gate_->open();
  for (std::thread* thread : {&releasing, &repeating, &beating}) thread->join();
  ASSERT_TRUE(first.ok() && again.ok()) << first.status() << again.status();
  EXPECT_EQ(first->devices(0).quarantine(), "");
  EXPECT_EQ(first->SerializeAsString(), again->SerializeAsString());
  const std::string found = quarantine_of_a();
  EXPECT_NE(found.find("xid-48"), std::string::npos) << found;
  open();
  connect();
  EXPECT_EQ(quarantine_of_a(), found);
}

TEST_F(PendingChanges, AFaultIsStoredTogetherWithWhatItMeansForTheJob) {
  const std::string name = running(small_spec(1));
  tests::FakeWorker& worker = worker_of(name);
  gate_->open(absl::ResourceExhaustedError("disk full"));
  worker.strike(get(name).placement(0).device().index(), "xid-79");
  EXPECT_FALSE(worker.beat(*manager_).ok());
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(free_devices(), 3u);
  gate_->shut();
  std::thread beating([&] { EXPECT_TRUE(worker.beat(*manager_).ok()); });
  gate_->wait_for(1);
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).conditions_size(), 0);
  gate_->open();
  beating.join();
  EXPECT_EQ(state(name), "RESTARTING");
  EXPECT_EQ(get(name).conditions_size(), 1);
}

TEST_F(PendingChanges, WhatARoundFindsOutHoldsNobodyUp) {
  const std::string name = running(small_spec(1)), other = submit(small_spec(1));
  run();
  ASSERT_EQ(state(other), "RUNNING");
  clock_.advance(std::chrono::seconds(100));
  gate_->shut();
  std::thread ticking([&] { manager_->tick(); });  // Every lease is over.
  gate_->wait_for(1);
  EXPECT_EQ(state(name), "RUNNING");  // Nobody sees it yet.
  EXPECT_EQ(manager_->list({})->jobs_size(), 2);
  gate_->open();
  ticking.join();
  EXPECT_EQ(path(name), "QUEUED STARTING RUNNING RESTARTING QUEUED ");
  EXPECT_EQ(path(other), "QUEUED STARTING RUNNING RESTARTING QUEUED ");
}

TEST_F(PendingChanges, WhereAReportGoesOnIsReadOnceAndHoldsNobodyUp) {
  const std::string name = running(small_spec(1));
  gate_->shut_for_reads();
  std::thread reporting([&] { EXPECT_TRUE(report(name, 1, 0, {step_event(1, 5)}).ok()); });
  gate_->wait_for(1);
  ASSERT_EQ(gate_->lines_read(), 1);
  EXPECT_EQ(state(name), "RUNNING");
  gate_->open();
  reporting.join();
  EXPECT_EQ(report(name, 1, 1, {step_event(2, 5)})->next_line(), 2u);
  EXPECT_EQ(report(name, 1, 1, {step_event(2, 5)})->next_line(), 2u);  // Told twice, it is heard once.
  EXPECT_EQ(report(name, 1, 5, {step_event(6, 5)})->next_line(), 2u);  // A gap.
  EXPECT_EQ(gate_->lines_read(), 1);
  EXPECT_EQ(get(name).progress().step(), 2u);
  open();
  EXPECT_EQ(report(name, 1, 1, {step_event(2, 5)})->next_line(), 2u);
}

TEST_F(PendingChanges, ManyThreadsOnManyJobs) {
  constexpr int kThreads = 4, kJobs = 10;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kJobs; ++i) {
        const std::string id = std::to_string(thread) + "-" + std::to_string(i);
        const auto job = manager_->create(request(id));
        ASSERT_TRUE(job.ok()) << job.status();
        ASSERT_TRUE(manager_->get(job->name()).ok());  // One's own submit is seen at once.
        if (i % 2 == 0) {
          EXPECT_TRUE(cancel(job->name(), "cancel" + id).ok());
        }
      }
    });
  }
  std::thread lists([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(manager_->list({}).ok());
  });
  for (std::thread& thread : threads) thread.join();
  lists.join();
  v1::ListJobsRequest queued;
  queued.add_states(v1::Job::QUEUED);
  EXPECT_EQ(manager_->list(queued)->jobs_size(), kThreads * kJobs / 2);
  const std::string before = manager_->list({})->SerializeAsString();
  open();
  EXPECT_EQ(manager_->list({})->SerializeAsString(), before);
}

TEST_F(PendingChanges, PagesOfAListCoverEveryJobOnce) {
  std::set<std::string> names;
  for (int i = 0; i < 130; ++i) names.insert(manager_->create(request(std::to_string(i)))->name());
  for (const int page_size : {1, 49, 50, 51, 130, 1000}) {
    v1::ListJobsRequest page;
    page.set_page_size(page_size);
    std::multiset<std::string> found;
    do {
      const v1::ListJobsResponse response = manager_->list(page).value();
      ASSERT_LE(response.jobs_size(), page_size);
      for (const v1::Job& job : response.jobs()) found.insert(job.name());
      page.set_page_token(response.next_page_token());
    } while (!page.page_token().empty());
    EXPECT_EQ(found, std::multiset<std::string>(names.begin(), names.end())) << page_size;
  }
}

}  // namespace
}  // namespace telar::server::jobs
