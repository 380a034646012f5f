// A hang, a straggler, a shrunk job: from what heartbeats say to what the coordinator does.
#include <gmock/gmock.h>

#include "tests/server/jobs/manager_fixture.h"

namespace telar::tests {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class HangManager : public ManagerTest {
 protected:
  // What the worker says of a rank from its next heartbeat on.
  static void pace(FakeWorker& worker, const std::string& job, uint64_t epoch, uint32_t rank, double silent,
                   uint64_t step = 40, double own = 1) {
    v1::RankPace& told = *worker.rank(job, epoch, rank).mutable_pace();
    told.set_step(step);
    told.set_silent_seconds(silent);
    told.set_step_seconds(own);
    told.set_own_seconds(own);
    told.set_activity(v1::RankPace::TRAINING);
  }
  void pace_all(const std::string& job, double silent, uint64_t step = 40) {
    const v1::Job now = get(job);  // Keeps the places alive.
    for (const v1::RankPlacement& place : now.placement()) {
      pace(place.node() == "a" ? a_ : b_, job, now.epoch(), place.rank(), silent, step);
    }
  }
  absl::Status send_flight(const v1::FlightWish& wish, const std::string& node, bool waits) {
    v1::ReportFlightRequest request;
    request.set_node(node);
    request.set_job(wish.job());
    request.set_epoch(wish.epoch());
    request.set_rank(wish.rank());
    v1::FlightEntry& entry = *request.mutable_record()->add_entries();
    entry.set_group("shard.0");
    entry.set_sequence(waits ? 8 : 7);
    entry.set_op("all_reduce");
    entry.set_state(waits ? v1::FlightEntry::RUNNING : v1::FlightEntry::DONE);
    entry.set_seconds(63);
    for (const uint32_t rank : {0u, 1u, 2u, 3u}) entry.add_ranks(rank);
    return manager_->report_flight(request);
  }
  std::string condition(const std::string& job, const std::string& type) {
    const v1::Job now = get(job);  // Keeps the conditions alive.
    for (const v1::Condition& one : now.conditions()) {
      if (one.type() == type) return one.message();
    }
    return "";
  }
  void look() {
    clock_.advance(std::chrono::milliseconds(500));
    manager_->tick();
  }
};

TEST_F(HangManager, TheMissingRankIsNamedAndTheGangIsRestarted) {
  const std::string name = running();
  pace_all(name, 59);
  beat();
  look();
  EXPECT_EQ(manager_->assignments("a").flights_size(), 0);
  pace_all(name, 61);
  beat();
  const uint64_t version = manager_->assignments_version("b");
  look();
  EXPECT_GT(manager_->assignments_version("b"), version);  // Sent at once, not with the next heartbeat.
  for (const char* node : {"a", "b"}) {
    const v1::HeartbeatResponse response = manager_->assignments(node);
    ASSERT_EQ(response.flights_size(), 2) << node;
    for (const v1::FlightWish& wish : response.flights()) {
      EXPECT_TRUE(send_flight(wish, node, wish.rank() != 2).ok());
    }
    EXPECT_EQ(manager_->assignments(node).flights_size(), 0);  // It has them.
  }
  EXPECT_EQ(state(name), "RUNNING");
  look();
  EXPECT_EQ(state(name), "RESTARTING");
  const std::string place = "is not in all_reduce 8 of group shard.0, which ranks 0, 1 and 3 wait in for 63 s";
  EXPECT_EQ(get(name).message(), "rank 2 on node b: HANG: " + place);
  EXPECT_EQ(condition(name, "HANG"), "rank 2 on node b " + place + " (epoch 1)");
  run();
  pass(seconds(2));
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(get(name).restarts(), 1u);     // Nothing says that the node was it.
  EXPECT_NE(condition(name, "HANG"), "");  // For people, until the next one.
}

TEST_F(HangManager, ItGoesOnWithoutRecordsThatDoNotCome) {
  const std::string name = running();
  pace_all(name, 61);
  beat();
  look();
  const v1::HeartbeatResponse response = manager_->assignments("a");
  for (const v1::FlightWish& wish : response.flights()) {
    EXPECT_TRUE(send_flight(wish, "a", true).ok());
  }
  for (int i = 0; i < 4; ++i) {
    pass(seconds(1));
    EXPECT_EQ(state(name), "RUNNING") << i;
  }
  pass(seconds(2));
  const v1::Job now = get(name);
  EXPECT_NE(v1::Job::State_Name(now.state()), "RUNNING");
  EXPECT_THAT(condition(name, "HANG"), HasSubstr("its worker sends no flight record"));
  run();
  EXPECT_EQ(get(name).node_restarts(), 1u);  // It is the node's budget.
  EXPECT_EQ(get(name).restarts(), 0u);
}

TEST_F(HangManager, WhoGetsOnAfterAllIsLeftAlone) {
  const std::string name = running();
  pace_all(name, 61);
  beat();
  look();
  EXPECT_EQ(manager_->assignments("a").flights_size(), 2);
  pace_all(name, 0, 41);
  beat();
  look();
  EXPECT_EQ(manager_->assignments("a").flights_size(), 0);
  pass(seconds(20));
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(condition(name, "HANG"), "");
}

TEST_F(HangManager, ARecordThatNobodyAskedForOrOfAnotherEpochIsNotTaken) {
  const std::string name = running();
  v1::FlightWish wish;
  wish.set_job(name);
  wish.set_epoch(1);
  EXPECT_TRUE(send_flight(wish, "a", true).ok());
  wish.set_epoch(9);
  EXPECT_EQ(send_flight(wish, "a", true).code(), absl::StatusCode::kFailedPrecondition);
  wish.set_epoch(1);
  EXPECT_EQ(send_flight(wish, "b", true).code(), absl::StatusCode::kFailedPrecondition);  // Rank 0 is on a.
}

TEST_F(HangManager, AStragglerIsFlaggedAndClearedAndNeverStopped) {
  const std::string name = running();
  for (const uint64_t step : {20, 30, 40, 50}) {
    pace_all(name, 0, step);
    pace(b_, name, 1, 3, 0, step, 1.3);
    beat();
    look();
  }
  EXPECT_THAT(condition(name, "STRAGGLER"), HasSubstr("rank 3 on node b takes 1.3 s of its own a step"));
  EXPECT_NEAR(manager_->census().live.at(0).straggler_ratio, 1.3, 1e-9);
  EXPECT_EQ(state(name), "RUNNING");
  pace_all(name, 0, 60);
  beat();
  look();
  EXPECT_EQ(condition(name, "STRAGGLER"), "");
  EXPECT_EQ(path(name), "QUEUED STARTING RUNNING ");
}

TEST_F(HangManager, ANodeThatAJobKeepsDyingOnIsAvoided) {
  v1::JobSpec spec = small_spec(1);
  spec.mutable_restart()->set_max_restarts(10);
  spec.mutable_restart()->set_max_without_progress(0);
  const std::string name = running(spec);
  const std::string first = get(name).placement(0).node();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(get(name).placement(0).node(), first);
    FakeWorker::die(worker_of(name).rank(name, get(name).epoch(), 0), 139, v1::CRASH, "killed by signal 11");
    run();
    pass(seconds(40));
    run();
    ASSERT_EQ(state(name), "RUNNING");
  }
  EXPECT_NE(get(name).placement(0).node(), first);
}

v1::JobSpec elastic_spec() {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_batch()->set_micro(1);
  spec.mutable_parallel()->mutable_elastic()->set_min_data(2);
  return spec;
}

TEST_F(HangManager, AnElasticJobShrinksWithTheClusterAndGrowsWithIt) {
  const std::string name = running(elastic_spec());
  EXPECT_EQ(get(name).data_parallel(), 4u);
  EXPECT_EQ(condition(name, "SHRUNK"), "");
  pass_with(a_, seconds(14));  // b is lost.
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).data_parallel(), 2u);
  EXPECT_EQ(get(name).placement_size(), 2);
  EXPECT_EQ(condition(name, "SHRUNK"), "runs with 2 of 4 replicas: there were no devices for more");
  const v1::RankPlan plan = a_.plans.at({name, 2, 1});
  EXPECT_EQ(plan.world_size(), 2u);
  EXPECT_EQ(plan.spec().parallel().data(), 2u);
  EXPECT_EQ(plan.spec().resources().devices(), 2u);
  EXPECT_EQ(plan.spec().batch().global(), 12u);
  EXPECT_EQ(get(name).spec().parallel().data(), 4u);  // What it was asked for stays.

  b_.reboot("2");
  ASSERT_TRUE(b_.register_at(*manager_).ok());
  beat();
  pass(seconds(280));
  EXPECT_EQ(get(name).data_parallel(), 2u);  // Not before it has run for a while.
  pass(seconds(30));
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 3u);
  EXPECT_EQ(get(name).data_parallel(), 4u);
  EXPECT_EQ(condition(name, "SHRUNK"), "");
  EXPECT_EQ(get(name).node_restarts(), 1u);  // Growing costs nothing.
  EXPECT_EQ(get(name).restarts(), 0u);
  pass(seconds(700));
  EXPECT_EQ(get(name).epoch(), 3u);
}

TEST_F(HangManager, AShrunkJobStaysWhereNothingBiggerFits) {
  const std::string name = running(elastic_spec());
  pass_with(a_, seconds(14));
  ASSERT_EQ(get(name).data_parallel(), 2u);
  for (int i = 0; i < 8; ++i) pass_with(a_, seconds(100));
  EXPECT_EQ(get(name).epoch(), 2u);
}

TEST_F(HangManager, WhatWaitsComesBeforeTheGrowthOfAShrunkJob) {
  const std::string name = running(elastic_spec());
  pass_with(a_, seconds(14));
  ASSERT_EQ(get(name).data_parallel(), 2u);
  const std::string other = submit(small_spec(2));
  b_.reboot("2");
  ASSERT_TRUE(b_.register_at(*manager_).ok());
  beat();
  pass(seconds(400));
  EXPECT_EQ(state(other), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 2u);
  ASSERT_TRUE(cancel(other).ok());
  pass(seconds(10));
  EXPECT_EQ(get(name).epoch(), 3u);
  EXPECT_EQ(get(name).data_parallel(), 4u);
}

TEST_F(HangManager, ARestartedCoordinatorKnowsTheShape) {
  const std::string name = running(elastic_spec());
  pass_with(a_, seconds(14));
  open();
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  const v1::HeartbeatResponse response = manager_->assignments("a");
  ASSERT_EQ(response.assignments_size(), 2);
  for (const v1::Assignment& one : response.assignments()) {
    EXPECT_EQ(one.plan().world_size(), 2u);
    EXPECT_EQ(one.plan().spec().parallel().data(), 2u);
  }
  EXPECT_EQ(get(name).data_parallel(), 2u);
}

TEST_F(HangManager, AnElasticJobIsAcceptedWhereItsLeastFits) {
  connect();
  v1::JobSpec spec = small_spec(6);
  spec.mutable_batch()->set_micro(1);
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  EXPECT_EQ(manager_->create(request).status().code(), absl::StatusCode::kFailedPrecondition);
  request.mutable_spec()->mutable_parallel()->mutable_elastic()->set_min_data(4);
  const auto job = manager_->create(request);
  ASSERT_TRUE(job.ok()) << job.status();
  run();
  EXPECT_EQ(get(job->name()).data_parallel(), 4u);
}

}  // namespace
}  // namespace telar::tests
