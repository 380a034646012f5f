// The job manager and its scheduler: what is decided becomes durable, costs who it should, and is explained.
#include <google/protobuf/util/message_differencer.h>

#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;
using tests::small_spec;
using v1::Waiting;

class Scheduling : public tests::ManagerTest {
 protected:
  void urgent_queue() {
    manager_->set_queues({{.name = "default"}, {.name = "urgent", .priority = 1, .preempt = true}});
  }
  static v1::JobSpec in_queue(v1::JobSpec spec, const std::string& queue) {
    spec.mutable_scheduling()->set_queue(queue);
    return spec;
  }
  void set(const std::string& node, v1::Node::Scheduling scheduling) {
    const auto changed = manager_->set_scheduling(node, scheduling, "for a test", "");
    ASSERT_TRUE(changed.ok()) << changed.status();
  }
  // The sums of Waiting.devices and of all nodes are the same, and so is what is free.
  void expect_reconciled(const v1::Job& job) {
    uint32_t counted = 0, all = 0, open = 0;
    std::map<std::string, uint32_t> why;
    for (const v1::DeviceCount& one : job.waiting().devices()) {
      counted += one.devices();
      why[one.why()] = one.devices();
    }
    for (const v1::Node& node : manager_->nodes()) {
      for (const v1::DeviceStatus& device : node.devices()) {
        ++all;
        const bool usable = node.state() == v1::Node::READY && node.scheduling() == v1::Node::OPEN;
        open += usable && device.job().empty() ? 1 : 0;
      }
    }
    EXPECT_EQ(counted, all) << job.waiting().DebugString();
    EXPECT_EQ(why["free"] + why["reserved"], why.count("excluded") == 0 ? open : 0) << job.waiting().DebugString();
  }
};

TEST_F(Scheduling, APreemptedJobSavesWaitsAtItsOldPlaceAndPaysNothing) {
  urgent_queue();
  const std::string victim = running();
  const std::string later = submit(small_spec(4));
  for (int i = 1; i <= 3; ++i) {
    const std::string urgent = submit(in_queue(small_spec(2), "urgent"));
    manager_->tick();
    EXPECT_EQ(state(victim), "RESTARTING");
    EXPECT_EQ(get(victim).message(), "preempted by " + urgent);
    run();
    EXPECT_EQ(state(urgent), "RUNNING");
    EXPECT_EQ(state(victim), "QUEUED");
    EXPECT_EQ(get(victim).preemptions(), static_cast<uint32_t>(i));
    EXPECT_EQ(get(victim).restarts(), 0u);
    EXPECT_EQ(get(victim).node_restarts(), 0u);
    a_.finish_all();
    b_.finish_all();
    run();
    EXPECT_EQ(state(urgent), "SUCCEEDED");
    EXPECT_EQ(state(victim), "RUNNING") << "before " << later << ", which came behind it";
    EXPECT_EQ(get(victim).epoch(), static_cast<uint64_t>(i) + 1);
  }
  EXPECT_EQ(state(later), "QUEUED");
}

TEST_F(Scheduling, AVictimThatFailsWhileItSavesPaysForThat) {
  urgent_queue();
  const std::string victim = running();
  a_.obeys_stop = b_.obeys_stop = false;
  submit(in_queue(small_spec(4), "urgent"));
  manager_->tick();
  beat();
  tests::FakeWorker::die(a_.rank(victim, 1, 0), 3, v1::STORAGE, "disk full");
  beat();
  a_.obeys_stop = b_.obeys_stop = true;
  run();
  EXPECT_EQ(get(victim).restarts(), 1u);
  EXPECT_EQ(get(victim).preemptions(), 1u);
}

TEST_F(Scheduling, ADrainMovesWhatRunsThereAndLastsBeyondARestart) {
  connect();
  const std::string name = submit(small_spec(2));
  run();
  const std::string node = get(name).placement(0).node();
  set(node, v1::Node::DRAINING);
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_NE(get(name).placement(0).node(), node);
  EXPECT_EQ(get(name).restarts() + get(name).node_restarts(), 0u);
  EXPECT_NE(path(name).find("RUNNING RESTARTING QUEUED STARTING RUNNING"), std::string::npos);
  const auto scheduling = [&] {
    for (const v1::Node& one : manager_->nodes()) {
      if (one.name() == node) return v1::Node::Scheduling_Name(one.scheduling()) + " " + one.scheduling_reason();
    }
    return std::string("gone");
  };
  EXPECT_EQ(scheduling(), "DRAINED for a test");
  open();  // All that was in memory is gone.
  EXPECT_EQ(scheduling(), "DRAINED for a test");
  connect();
  const std::string waits = submit(small_spec(2));
  run();
  EXPECT_EQ(state(waits), "QUEUED");
  EXPECT_EQ(get(waits).waiting().reason(), Waiting::DEVICES);
  expect_reconciled(get(waits));
  set(node, v1::Node::OPEN);
  run();
  EXPECT_EQ(state(waits), "RUNNING");
}

TEST_F(Scheduling, ATimeLimitCountsWhatRanOverAllEpochs) {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_scheduling()->set_time_limit_seconds(100);
  const std::string name = running(spec);
  pass(seconds(60));
  EXPECT_NEAR(get(name).run_seconds(), 60, 2);
  set("a", v1::Node::DRAINING);
  run();
  EXPECT_EQ(state(name), "QUEUED");
  pass(seconds(500));  // In the queue nothing counts.
  EXPECT_NEAR(get(name).run_seconds(), 60, 2);
  open();
  connect();
  set("a", v1::Node::OPEN);
  run();
  EXPECT_EQ(state(name), "RUNNING");
  pass(seconds(30));
  EXPECT_EQ(state(name), "RUNNING");
  pass(seconds(15));
  run();
  EXPECT_EQ(state(name), "FAILED");
  EXPECT_EQ(get(name).failure_class(), v1::TIME_LIMIT);
  EXPECT_EQ(get(name).message(), "ran for 100 s, which is its scheduling.time_limit_seconds");
  EXPECT_EQ(free_devices(), 4u);
}

TEST_F(Scheduling, DependenciesHoldBackAndFailWithWhatTheyWaitFor) {
  connect();
  const std::string first = submit(small_spec(4));
  v1::JobSpec spec = small_spec(1);
  spec.mutable_scheduling()->add_after()->set_job(first.substr(first.rfind('/') + 1));
  const std::string second = submit(spec);
  spec = small_spec(1);
  spec.mutable_scheduling()->add_after()->set_job(first);
  spec.mutable_scheduling()->mutable_after(0)->set_condition(v1::Dependency::ENDED);
  const std::string third = submit(spec);
  spec.mutable_scheduling()->mutable_after(0)->set_condition(v1::Dependency::STARTED);
  const std::string fourth = submit(spec);
  manager_->tick();
  EXPECT_EQ(get(second).spec().scheduling().after(0).job(), first);
  EXPECT_EQ(get(second).waiting().reason(), Waiting::DEPENDENCY);
  EXPECT_EQ(get(second).message(), "job " + first + " is STARTING, and has to end as SUCCEEDED");
  run();
  EXPECT_EQ(get(fourth).waiting().reason(), Waiting::DEVICES);  // That one has started.
  ASSERT_TRUE(cancel(first).ok());
  run();
  EXPECT_EQ(state(second), "FAILED");
  EXPECT_EQ(get(second).failure_class(), v1::DEPENDENCY);
  EXPECT_EQ(state(third), "RUNNING");
  EXPECT_EQ(state(fourth), "RUNNING");

  v1::CreateJobRequest late;
  *late.mutable_spec() = spec;
  late.mutable_spec()->mutable_scheduling()->mutable_after(0)->set_condition(v1::Dependency::SUCCEEDED);
  EXPECT_EQ(reason(manager_->create(late).status()), "DEPENDENCY_FAILED");
  late.mutable_spec()->mutable_scheduling()->mutable_after(0)->set_job("nobody");
  late.mutable_spec()->mutable_scheduling()->set_queue("defualt");
  const absl::Status status = manager_->create(late).status();
  std::map<std::string, std::string> found;
  for (const Violation& one : violations(status)) found[one.field] = one.description;
  EXPECT_EQ(found["spec.scheduling.after[0].job"],
            "'projects/default/jobs/nobody' does not exist; submit first what comes first");
  EXPECT_EQ(found["spec.scheduling.queue"], "'defualt' is none of the queues: default; did you mean 'default'?");
}

TEST_F(Scheduling, AChainOfDependenciesFailsToItsEndAndStartsNothing) {
  connect();
  const std::string first = submit(small_spec(1));
  v1::JobSpec spec = small_spec(1);
  spec.mutable_scheduling()->add_after()->set_job(first);
  const std::string second = submit(spec);
  spec.mutable_scheduling()->mutable_after(0)->set_job(second);
  const std::string third = submit(spec);
  run();
  ASSERT_EQ(state(first), "RUNNING");
  ASSERT_TRUE(cancel(first).ok());
  run();
  EXPECT_EQ(path(second), "QUEUED FAILED ");
  EXPECT_EQ(path(third), "QUEUED FAILED ");
  EXPECT_EQ(get(third).failure_class(), v1::DEPENDENCY);
}

TEST_F(Scheduling, WaitingForTheFirstStartIsNoRecovery) {
  v1::JobSpec spec = small_spec(1);
  spec.mutable_resources()->set_wait_for_capacity(true);
  const std::string name = submit(spec);
  clock_.advance(std::chrono::seconds(7));
  connect();
  run();
  ASSERT_EQ(state(name), "RUNNING");
  EXPECT_DOUBLE_EQ(get(name).goodput().queued_seconds(), 7);
  EXPECT_DOUBLE_EQ(get(name).goodput().recovering_seconds(), 0);
}

TEST_F(Scheduling, EveryWaitingJobHasOneReasonWithNumbersThatAddUp) {
  connect();
  manager_->set_queues({{.name = "default"}, {.name = "small", .quota_devices = 1}});
  const std::string runs = submit(small_spec(3));
  const std::string quota = submit(in_queue(small_spec(1), "small"));
  run();
  const std::string over = submit(in_queue(small_spec(1), "small"));
  const std::string devices = submit(small_spec(2));
  v1::JobSpec labelled = small_spec(2);
  (*labelled.mutable_scheduling()->mutable_node_labels())["zone"] = "x";
  labelled.mutable_resources()->set_wait_for_capacity(true);
  const std::string nodes = submit(labelled);
  run();
  EXPECT_EQ(state(quota), "RUNNING");
  EXPECT_EQ(get(over).waiting().reason(), Waiting::QUOTA);
  EXPECT_FALSE(get(over).waiting().never());
  EXPECT_EQ(get(devices).waiting().reason(), Waiting::DEVICES);
  EXPECT_EQ(get(devices).message(), "needs 2 CPU devices; 0 free of 4");
  ASSERT_GT(get(devices).waiting().behind_size(), 0);
  EXPECT_EQ(get(nodes).waiting().reason(), Waiting::NODES);
  EXPECT_TRUE(get(nodes).waiting().never());
  for (const std::string& name : {over, devices, nodes}) {
    expect_reconciled(get(name));
    EXPECT_FALSE(get(name).waiting().unblock().empty()) << name;
  }
  const auto listed = manager_->list({});
  for (const v1::Job& job : listed->jobs()) {
    EXPECT_EQ(job.has_waiting(), job.state() == v1::Job::QUEUED) << job.name();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(job, get(job.name())));
  }
  EXPECT_EQ(get(runs).has_waiting(), false);
  labelled.mutable_resources()->set_wait_for_capacity(false);
  v1::CreateJobRequest request;
  *request.mutable_spec() = labelled;
  EXPECT_EQ(reason(manager_->create(request).status()), "INSUFFICIENT_NODES");
  *request.mutable_spec() = in_queue(small_spec(2), "small");
  EXPECT_EQ(reason(manager_->create(request).status()), "QUOTA_EXCEEDED");
}

TEST_F(Scheduling, TryingOutSaysWhereOrWhyNot) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(3);
  request.set_validate_only(true);
  v1::Job tried = manager_->create(request).value();
  ASSERT_EQ(tried.placement_size(), 3);
  EXPECT_FALSE(tried.has_waiting());
  EXPECT_EQ(tried.placement(2).rank(), 2u);
  const std::string name = submit(small_spec(3));
  manager_->tick();
  const v1::Job placed = get(name);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(placed.placement(rank).node(), tried.placement(rank).node());
    EXPECT_EQ(placed.placement(rank).device().index(), tried.placement(rank).device().index());
  }
  tried = manager_->create(request).value();
  EXPECT_EQ(tried.placement_size(), 0);
  EXPECT_EQ(tried.waiting().reason(), Waiting::DEVICES);
  EXPECT_EQ(tried.waiting().message(), "needs 3 CPU devices; 1 free of 4");
  EXPECT_EQ(manager_->list({})->jobs_size(), 1);
  EXPECT_EQ(manager_->queues()[0].queued_jobs(), 0u);
}

TEST_F(Scheduling, ASpareNodeIsForAJobThatLostOne) {
  tests::FakeWorker spare("s", 2);
  spare.spare = true;
  ASSERT_TRUE(spare.register_at(*manager_).ok());
  ASSERT_TRUE(spare.beat(*manager_).ok());
  const std::string name = running();
  const std::string other = submit(small_spec(2));
  manager_->tick();
  EXPECT_EQ(state(other), "QUEUED");
  for (int i = 0; i < 14; ++i) {  // b is silent.
    clock_.advance(seconds(1));
    ASSERT_TRUE(a_.beat(*manager_).ok());
    ASSERT_TRUE(spare.beat(*manager_).ok());
    manager_->tick();
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(a_.beat(*manager_).ok());
    ASSERT_TRUE(spare.beat(*manager_).ok());
    manager_->tick();
  }
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).node_restarts(), 1u);
  std::set<std::string> nodes;
  const v1::Job placed = get(name);
  for (const v1::RankPlacement& place : placed.placement()) nodes.insert(place.node());
  EXPECT_EQ(nodes, (std::set<std::string>{"a", "s"}));
  EXPECT_EQ(state(other), "QUEUED");
}

TEST_F(Scheduling, QueuesAreListedWithWhatTheyHoldAndWant) {
  urgent_queue();
  connect();
  submit(small_spec(3));
  submit(in_queue(small_spec(2), "urgent"));
  submit(small_spec(4));
  run();
  const std::vector<v1::Queue> queues = manager_->queues();
  ASSERT_EQ(queues.size(), 2u);
  EXPECT_EQ(queues[1].name(), "urgent");
  EXPECT_EQ(queues[1].priority(), 1);
  EXPECT_EQ(queues[1].held_devices(), 2u);
  EXPECT_EQ(queues[1].running_jobs(), 1u);
  EXPECT_EQ(queues[0].held_devices(), 0u);
  EXPECT_EQ(queues[0].queued_jobs(), 2u);
  EXPECT_EQ(queues[0].queued_devices(), 7u);
  manager_->set_queues({{.name = "default"}});  // Its jobs go on.
  EXPECT_EQ(manager_->queues().size(), 2u);
}

}  // namespace
}  // namespace telar::server::jobs
