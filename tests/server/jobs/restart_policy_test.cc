// Who pays for a restart, how long it waits, when there is no other one, and which nodes are avoided.
#include "server/jobs/restart_policy.h"

#include <gmock/gmock.h>

#include "server/jobs/blame.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JobRecord record_with(v1::FailureClass failure_class, bool of_node = false) {
  JobRecord record;
  v1::RestartSpec& restart = *record.mutable_job()->mutable_spec()->mutable_restart();
  restart.set_max_restarts(3);
  restart.set_max_node_restarts(100);
  restart.set_max_without_progress(5);
  restart.set_backoff_seconds(2);
  Failure* failure = record.add_failures();
  failure->set_node("b");
  failure->set_rank(1);
  failure->set_failure_class(failure_class);
  failure->set_of_node(of_node);
  return record;
}

TEST(RestartPolicy, EachClassHasItsBudget) {
  const auto budget = [](v1::FailureClass failure_class, bool of_node = false) {
    return judge(record_with(failure_class, of_node)).budget;
  };
  for (const auto one : {v1::NUMERIC, v1::STORAGE, v1::CRASH, v1::INTERNAL}) EXPECT_EQ(budget(one), Budget::kOwn);
  for (const auto one : {v1::NODE_LOST, v1::DEVICE, v1::COMMUNICATION}) EXPECT_EQ(budget(one), Budget::kNode);
  EXPECT_EQ(budget(v1::HANG), Budget::kOwn);
  EXPECT_EQ(budget(v1::HANG, true), Budget::kNode);
  EXPECT_EQ(budget(v1::FAILURE_CLASS_UNSPECIFIED), Budget::kNone);
}

TEST(RestartPolicy, OwnFailuresWaitTwiceAsLongEachTime) {
  JobRecord record = record_with(v1::CRASH);
  for (const int wait : {2, 4, 8}) EXPECT_EQ(count_restart(record, judge(record)), seconds(wait));
  EXPECT_EQ(record.job().restarts(), 3u);
  EXPECT_EQ(record.job().node_restarts(), 0u);
  EXPECT_FALSE(judge(record).retry);
  EXPECT_EQ(judge(record).failure_class, v1::CRASH);
}

TEST(RestartPolicy, NodeFailuresWaitOnlyWhereTheyFollowEachOtherWithoutProgress) {
  JobRecord record = record_with(v1::NODE_LOST);
  for (const int wait : {0, 2, 4, 8}) EXPECT_EQ(count_restart(record, judge(record)), seconds(wait));
  record.mutable_job()->mutable_progress()->set_step(7);
  EXPECT_EQ(count_restart(record, judge(record)), seconds(0));
  EXPECT_EQ(record.job().node_restarts(), 5u);
  EXPECT_EQ(record.job().restarts(), 0u);
}

TEST(RestartPolicy, RestartsThatBringNothingComeToAnEnd) {
  JobRecord record = record_with(v1::NODE_LOST);
  record.mutable_job()->mutable_progress()->set_step(40);
  for (int i = 0; i < 6; ++i) {  // The first had brought 40 steps.
    ASSERT_TRUE(judge(record).retry) << i;
    count_restart(record, judge(record));
    EXPECT_EQ(record.job().without_progress(), static_cast<uint32_t>(i));
    record.mutable_job()->mutable_progress()->set_step(30 +
                                                       static_cast<uint64_t>(i) % 10);  // From a checkpoint, again.
  }
  const Verdict verdict = judge(record);
  EXPECT_FALSE(verdict.retry);
  EXPECT_EQ(verdict.failure_class, v1::NO_PROGRESS);
  EXPECT_EQ(verdict.message,
            "rank 1 on node b: NODE_LOST; no progress: 5 restarts in a row brought no newer checkpoint and no step "
            "behind 40 (restart.max_without_progress: 5)");
  JobRecord further = record;
  further.mutable_job()->mutable_progress()->set_step(41);
  EXPECT_TRUE(judge(further).retry);
  JobRecord saved = record;
  saved.set_has_commit(true);
  saved.set_commit_step(20);
  EXPECT_TRUE(judge(saved).retry);
  count_restart(saved, judge(saved));
  EXPECT_EQ(saved.job().without_progress(), 0u);
  JobRecord unlimited = record;
  unlimited.mutable_job()->mutable_spec()->mutable_restart()->set_max_without_progress(0);
  EXPECT_TRUE(judge(unlimited).retry);
}

TEST(RestartPolicy, AnInterruptionNeitherCountsNorEnds) {
  JobRecord record = record_with(v1::FAILURE_CLASS_UNSPECIFIED);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(judge(record).retry);
    EXPECT_EQ(count_restart(record, judge(record)), seconds(0));
  }
  EXPECT_EQ(record.job().without_progress(), 0u);
  EXPECT_EQ(record.job().restarts() + record.job().node_restarts(), 0u);
}

TEST(Blame, ThreeFailuresOnOneNodeAmongFewOthersMakeItAvoided) {
  JobRecord record;
  add_blame(record, v1::CRASH, "b");
  add_blame(record, v1::DEVICE, "b");
  add_blame(record, v1::CRASH, "a");
  EXPECT_THAT(avoided_nodes(record), IsEmpty());
  add_blame(record, v1::HANG, "b");
  EXPECT_THAT(avoided_nodes(record), ElementsAre("b"));
  add_blame(record, v1::CRASH, "a");
  add_blame(record, v1::CRASH, "c");  // As many elsewhere: it is the job.
  EXPECT_THAT(avoided_nodes(record), IsEmpty());
}

TEST(Blame, WhatNoNodeIsTheReasonOfDoesNotCount) {
  JobRecord record;
  for (const auto one : {v1::DATA, v1::NUMERIC, v1::NODE_LOST, v1::STORAGE, v1::FAILURE_CLASS_UNSPECIFIED}) {
    for (int i = 0; i < 3; ++i) add_blame(record, one, "b");
  }
  EXPECT_THAT(avoided_nodes(record), IsEmpty());
  for (int i = 0; i < 20; ++i) add_blame(record, v1::CRASH, "b");
  EXPECT_EQ(record.blames_size(), 8);
}

}  // namespace
}  // namespace telar::server::jobs
