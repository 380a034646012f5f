// Requests and their answers: submit, replay, list, queue, progress, logs, fencing.
#include <set>

#include "server/jobs/restart_policy.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using std::chrono::seconds;
using tests::small_spec;

class Requests : public tests::ManagerTest {
 protected:
  static v1::AppendLogRequest log_request(const std::string& job, uint64_t epoch, uint64_t offset,
                                          const std::string& data) {
    v1::AppendLogRequest request;
    request.set_node("a");
    request.set_job(job);
    request.set_epoch(epoch);
    request.set_offset(offset);
    request.set_data(data);
    return request;
  }
};

TEST_F(Requests, ARepeatedRequestIsAnsweredAsTheFirstWas) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(4);
  request.set_request_id("r1");
  const v1::Job first = manager_->create(request).value();
  run();
  EXPECT_EQ(state(first.name()), "RUNNING");
  EXPECT_EQ(manager_->create(request)->SerializeAsString(), first.SerializeAsString());
  open();  // No worker is there any more; the answer is.
  EXPECT_EQ(manager_->create(request)->SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(manager_->list({})->jobs_size(), 1);
}

TEST_F(Requests, ABadSpecListsEveryViolation) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(4);
  request.mutable_spec()->set_name("Not A Label");
  request.mutable_spec()->mutable_model()->set_heads(5);
  request.set_parent("nonsense");
  const absl::Status status = manager_->create(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  std::multiset<std::string> fields;
  for (const Violation& violation : violations(status)) fields.insert(violation.field);
  EXPECT_EQ(fields.count("spec.name"), 1u) << status;
  EXPECT_EQ(fields.count("parent"), 1u) << status;
  EXPECT_GE(fields.size(), 3u) << status;
  EXPECT_EQ(manager_->list({})->jobs_size(), 0);
}

TEST_F(Requests, ValidateOnlyStoresNothing) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(4);
  request.set_validate_only(true);
  request.set_request_id("r1");
  const v1::Job job = manager_->create(request).value();
  EXPECT_EQ(job.name(), "");
  EXPECT_GT(job.parameters(), 0u);
  EXPECT_GT(job.spec().model().vocab(), 0u);
  EXPECT_EQ(manager_->list({})->jobs_size(), 0);
  EXPECT_TRUE(store_->jobs()->empty());
  request.set_validate_only(false);
  EXPECT_NE(manager_->create(request)->name(), "");
}

TEST_F(Requests, MoreDevicesThanThereAreIsRefusedUnlessItWaits) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(6);
  const absl::Status status = manager_->create(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reason(status), "INSUFFICIENT_DEVICES");
  EXPECT_EQ(status.message().find("resources.devices: 6 CPU devices are wanted, the cluster has 4"), 0U) << status;
  request.mutable_spec()->mutable_resources()->set_wait_for_capacity(true);
  const std::string name = manager_->create(request)->name();
  run();
  EXPECT_EQ(get(name).message(), "needs 6 CPU devices; the cluster has 4 in all");
}

TEST_F(Requests, TensorGroupsWiderThanAnyDomainAreRefusedUnlessTheyMayBeTorn) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(4);
  v1::JobSpec& spec = *request.mutable_spec();
  spec.mutable_model()->set_heads(4);
  spec.mutable_parallel()->set_tensor(4);
  absl::Status status = manager_->create(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reason(status), "INSUFFICIENT_ROOM");
  EXPECT_EQ(std::string(status.message()),
            "parallel.tensor: 4 ranks need one node, the largest has 2 devices (node a); use 2, or set "
            "parallel.tensor_across_nodes");
  spec.mutable_resources()->set_devices(8);
  status = manager_->create(request).status();
  EXPECT_EQ(reason(status), "INSUFFICIENT_DEVICES");  // Both are said.
  EXPECT_NE(status.message().find("the cluster has 4"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("parallel.tensor: 4 ranks need one node"), absl::string_view::npos) << status;
  spec.mutable_resources()->set_devices(4);
  spec.mutable_parallel()->clear_data();
  spec.mutable_parallel()->set_tensor_across_nodes(true);
  const std::string name = manager_->create(request)->name();
  run();
  EXPECT_EQ(state(name), "RUNNING");
}

TEST_F(Requests, MoreTensorGroupsThanDomainsHoldAreRefused) {
  v1::RegisterNodeRequest node;
  node.set_node("gpus");
  node.set_incarnation("1");
  for (uint32_t i = 0; i < 6; ++i) {
    v1::Device* device = node.add_devices();
    device->set_kind(v1::ResourceSpec::GPU);
    device->set_index(i);
    device->set_nvlink_domain(i / 3);
  }
  ASSERT_TRUE(manager_->register_node(node).ok());
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(6);
  v1::JobSpec& spec = *request.mutable_spec();
  spec.mutable_resources()->set_kind(v1::ResourceSpec::GPU);
  spec.mutable_parallel()->set_tensor(2);
  const absl::Status status = manager_->create(request).status();
  EXPECT_EQ(
      std::string(status.message()),
      "parallel.tensor: 6 devices are wanted as 3 groups of 2, each inside one NVLink domain; the cluster has room "
      "for 2; ask for at most that, or set parallel.tensor_across_nodes");
  spec.mutable_resources()->set_wait_for_capacity(true);
  const std::string name = manager_->create(request)->name();
  v1::HeartbeatRequest beat;
  beat.set_node("gpus");
  beat.set_incarnation("1");
  ASSERT_TRUE(manager_->heartbeat(beat).ok());
  manager_->tick();
  EXPECT_EQ(get(name).message(),
            "needs 6 GPU devices; 6 free of 6, but not as whole tensor-parallel groups in one NVLink domain");
}

TEST_F(Requests, AJobThatDoesNotFitBlocksNoSmallerOne) {
  connect();
  const std::string one = submit(small_spec(1));
  run();
  const std::string four = submit(small_spec(4));
  const std::string two = submit(small_spec(2));
  run();
  EXPECT_EQ(state(one), "RUNNING");
  EXPECT_EQ(state(four), "QUEUED");
  EXPECT_EQ(get(four).message(), "needs 4 CPU devices; 1 free of 4");
  EXPECT_EQ(state(two), "RUNNING");
}

TEST_F(Requests, ListPagesNewestFirst) {
  connect();
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) names.push_back(submit(small_spec(4)));
  v1::ListJobsRequest request;
  request.set_page_size(2);
  std::vector<std::string> listed;
  do {
    const auto response = manager_->list(request);
    ASSERT_TRUE(response.ok());
    EXPECT_LE(response->jobs_size(), 2);
    for (const v1::Job& job : response->jobs()) listed.push_back(job.name());
    request.set_page_token(response->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, std::vector<std::string>(names.rbegin(), names.rend()));

  run();
  v1::ListJobsRequest only;
  only.add_states(v1::Job::RUNNING);
  ASSERT_EQ(manager_->list(only)->jobs_size(), 1);
  EXPECT_EQ(manager_->list(only)->jobs(0).name(), names[0]);
  only.set_parent("projects/other");
  EXPECT_EQ(manager_->list(only)->jobs_size(), 0);
  only.set_page_token("zzz");
  EXPECT_EQ(manager_->list(only).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Requests, EventsAreTakenOnceAndInOrder) {
  const std::string name = running();
  EXPECT_EQ(report(name, 1, 0, {step_event(1, 5.0), step_event(2, 4.0)})->next_line(), 2u);
  EXPECT_EQ(report(name, 1, 0, {step_event(1, 5.0), step_event(2, 4.0)})->next_line(), 2u);
  EXPECT_EQ(report(name, 1, 1, {step_event(2, 4.0), step_event(3, 3.0)})->next_line(), 3u);  // Overlap.
  EXPECT_EQ(report(name, 1, 9, {step_event(10, 1.0)})->next_line(), 3u);                     // Gap.
  open();
  EXPECT_EQ(report(name, 1, 9, {})->next_line(), 3u);
  const v1::Progress progress = get(name).progress();
  EXPECT_EQ(progress.step(), 3u);
  EXPECT_EQ(progress.total_steps(), 100u);
  EXPECT_EQ(progress.first_loss(), 5.0);
  EXPECT_EQ(progress.loss(), 3.0);
  EXPECT_EQ(progress.tokens(), 3u * 12 * 16);
  EXPECT_DOUBLE_EQ(progress.eta_seconds(), 97 * 2.0);
  int steps = 0;
  uint64_t last = 0;
  const auto page = manager_->events(name, 0, 100);
  for (const v1::JobEvent& event : page->events) {
    EXPECT_EQ(event.sequence(), ++last);
    steps += event.rank_report().event().has_step() ? 1 : 0;
  }
  EXPECT_EQ(steps, 3);
}

TEST_F(Requests, ProgressHasCheckpointEvalAndSample) {
  const std::string name = running();
  v1::RankEvent started, eval, checkpoint, sample;
  started.mutable_started()->set_parameters(123);
  eval.mutable_eval()->set_loss(2.5);
  eval.mutable_eval()->add_sources()->set_name("web");
  checkpoint.mutable_checkpoint()->set_step(50);
  checkpoint.mutable_checkpoint()->set_path("/runs/x/ckpt/50");
  sample.mutable_sample()->set_text("In the beginning");
  ASSERT_TRUE(report(name, 1, 0, {started, eval, checkpoint, sample}).ok());
  const v1::Job job = get(name);
  EXPECT_EQ(job.parameters(), 123u);
  EXPECT_EQ(job.progress().eval_loss(), 2.5);
  ASSERT_EQ(job.progress().eval_sources_size(), 1);
  EXPECT_EQ(job.progress().eval_sources(0).name(), "web");
  EXPECT_EQ(job.progress().checkpoint_step(), 50u);
  EXPECT_EQ(job.progress().checkpoint_path(), "/runs/x/ckpt/50");
  EXPECT_EQ(job.progress().sample(), "In the beginning");
}

TEST_F(Requests, StepEventsOfALongJobAreThinned) {
  const std::string name = running();
  const size_t before = manager_->events(name, 0, 1000)->events.size();
  std::vector<v1::RankEvent> events;
  uint64_t step = 0;
  for (uint64_t first = 0; first < 2 * kMostStepEvents + 1001; first += events.size()) {
    events.clear();
    for (int i = 0; i < 1000; ++i) events.push_back(step_event(++step, 1));
    ASSERT_EQ(report(name, 1, first, events)->next_line(), first + 1000);
  }
  const auto page = manager_->events(name, 0, 1'000'000);
  EXPECT_LE(page->events.size() - before, kMostStepEvents + 1000);
  EXPECT_GE(page->events.size() - before, kMostStepEvents / 2);
  EXPECT_EQ(page->events.back().rank_report().event().step().step(), step);  // The newest stays.
  EXPECT_TRUE(page->events.front().has_state_change());
}

TEST_F(Requests, KeysOfAMeetingSurviveARestartAndEndWithTheEpoch) {
  const std::string name = running();
  ASSERT_TRUE(manager_->put_key(name, 1, "rank_0", "host:1").ok());
  EXPECT_EQ(reason(manager_->put_key(name, 2, "rank_0", "x")), "STALE_EPOCH");
  open();
  EXPECT_EQ(manager_->keys(name, 1).value(), (std::map<std::string, std::string>{{"rank_0", "host:1"}}));
  connect();
  run();
  tests::FakeWorker::die(a_.rank(name, 1, 1), 139, v1::CRASH, "");
  run();
  pass(seconds(1));
  run();
  ASSERT_EQ(get(name).epoch(), 2u);
  EXPECT_TRUE(manager_->keys(name, 2).value().empty());
}

TEST_F(Requests, ACheckpointIsDecidedOnceAndForGood) {
  const std::string name = running();
  EXPECT_FALSE(manager_->last_commit(name, 1)->has_value());
  EXPECT_EQ(reason(manager_->commit_checkpoint(name, 2, 100)), "STALE_EPOCH");
  EXPECT_EQ(reason(manager_->commit_checkpoint("projects/default/jobs/none", 1, 100)), "JOB_NOT_FOUND");
  ASSERT_TRUE(manager_->commit_checkpoint(name, 1, 100).ok());
  ASSERT_TRUE(manager_->commit_checkpoint(name, 1, 100).ok());  // The answer was lost.
  open();
  connect();
  ASSERT_TRUE(manager_->commit_checkpoint(name, 1, 100).ok());
  EXPECT_EQ(manager_->last_commit(name, 1)->value().step, 100u);
  ASSERT_TRUE(manager_->commit_checkpoint(name, 1, 200).ok());
  EXPECT_EQ(reason(manager_->commit_checkpoint(name, 1, 100)), "STALE_STEP");

  // The next epoch knows of it, and may go back to before it; the last one may not come back.
  tests::FakeWorker::die(a_.rank(name, 1, 1), 139, v1::CRASH, "");
  run();
  pass(seconds(1));
  run();
  ASSERT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(reason(manager_->commit_checkpoint(name, 1, 300)), "STALE_EPOCH");
  EXPECT_EQ(reason(manager_->last_commit(name, 1).status()), "STALE_EPOCH");
  const auto last = manager_->last_commit(name, 2);
  ASSERT_TRUE(last.ok() && last->has_value());
  EXPECT_EQ((*last)->epoch, 1u);
  EXPECT_EQ((*last)->step, 200u);
  ASSERT_TRUE(manager_->commit_checkpoint(name, 2, 150).ok());
}

// A gang that is being stopped may save, as long as its rank 0 can be alive.
TEST_F(Requests, AnEpochThatIsBeingEndedMayStillCommit) {
  const std::string name = running();
  a_.obeys_stop = b_.obeys_stop = false;
  ASSERT_TRUE(cancel(name).ok());
  run();
  ASSERT_EQ(state(name), "CANCELLING");
  EXPECT_TRUE(manager_->commit_checkpoint(name, 1, 100).ok());
  tests::FakeWorker::die(a_.rank(name, 1, 0), 10, v1::FAILURE_CLASS_UNSPECIFIED, "");
  beat();
  ASSERT_EQ(state(name), "CANCELLING");
  EXPECT_EQ(reason(manager_->commit_checkpoint(name, 1, 200)), "STALE_EPOCH");
  a_.obeys_stop = b_.obeys_stop = true;
  run();
  ASSERT_EQ(state(name), "CANCELLED");
  EXPECT_EQ(reason(manager_->commit_checkpoint(name, 1, 200)), "STALE_EPOCH");
}

TEST_F(Requests, ProgressTellsOfTheLastDurableCheckpoint) {
  const std::string name = running();
  const auto saved = [](uint64_t step, v1::CheckpointReport::State state) {
    v1::RankEvent event;
    event.mutable_checkpoint()->set_step(step);
    event.mutable_checkpoint()->set_state(state);
    if (state != v1::CheckpointReport::FAILED) event.mutable_checkpoint()->set_path("/ckpt");
    return event;
  };
  ASSERT_TRUE(report(name, 1, 0, {saved(5, v1::CheckpointReport::STAGED)}).ok());
  EXPECT_EQ(get(name).progress().checkpoint_step(), 0u);
  ASSERT_TRUE(report(name, 1, 1, {saved(5, v1::CheckpointReport::DURABLE)}).ok());
  EXPECT_EQ(get(name).progress().checkpoint_step(), 5u);
  ASSERT_TRUE(
      report(name, 1, 2, {saved(10, v1::CheckpointReport::STAGED), saved(10, v1::CheckpointReport::FAILED)}).ok());
  EXPECT_EQ(get(name).progress().checkpoint_step(), 5u);
  EXPECT_EQ(get(name).progress().checkpoint_path(), "/ckpt");
  ASSERT_TRUE(report(name, 1, 4, {saved(15, v1::CheckpointReport::STATE_UNSPECIFIED)}).ok());  // An older rank.
  EXPECT_EQ(get(name).progress().checkpoint_step(), 15u);
}

TEST_F(Requests, AStaleEpochIsRefused) {
  const std::string name = running();
  v1::AppendLogRequest log = log_request(name, 1, 0, "hello");
  EXPECT_EQ(manager_->append_log(log)->next_offset(), 5u);
  EXPECT_TRUE(manager_->keys(name, 1).ok());
  EXPECT_EQ(reason(manager_->keys(name, 2).status()), "STALE_EPOCH");
  log.set_node("b");
  EXPECT_EQ(reason(manager_->append_log(log).status()), "STALE_EPOCH");  // Not the node of rank 0.
  log.set_node("a");

  tests::FakeWorker::die(a_.rank(name, 1, 1), 139, v1::CRASH, "");
  run();
  pass(seconds(1));
  run();
  ASSERT_EQ(get(name).epoch(), 2u);
  EXPECT_EQ(manager_->append_log(log).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reason(report(name, 1, 0, {step_event(1, 5)}).status()), "STALE_EPOCH");
  EXPECT_EQ(reason(manager_->keys(name, 1).status()), "STALE_EPOCH");
  EXPECT_TRUE(manager_->keys(name, 2).ok());
  EXPECT_EQ(manager_->read_log(name, 1, 0, 0)->data, "hello");

  ASSERT_TRUE(cancel(name).ok());
  EXPECT_EQ(reason(manager_->keys(name, 2).status()), "STALE_EPOCH");  // No rendezvous for what is to end.
  run();
  log.set_epoch(2);
  EXPECT_EQ(reason(manager_->append_log(log).status()), "STALE_EPOCH");
}

TEST_F(Requests, LogsTakeDuplicatesAndReportGaps) {
  const std::string name = running();
  EXPECT_EQ(manager_->append_log(log_request(name, 1, 0, "hello"))->next_offset(), 5u);
  EXPECT_EQ(manager_->append_log(log_request(name, 1, 0, "hello"))->next_offset(), 5u);
  EXPECT_EQ(manager_->append_log(log_request(name, 1, 9, "hello"))->next_offset(), 5u);
  const std::string large((64 << 10) + 1, 'x');
  EXPECT_EQ(manager_->append_log(log_request(name, 1, 5, large)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reason(manager_->append_log(log_request("projects/default/jobs/nobody", 1, 0, "x")).status()),
            "JOB_NOT_FOUND");
}

TEST_F(Requests, AFailureEventNamesTheCause) {
  const std::string name = running();
  v1::RankEvent failure;
  failure.mutable_failure()->set_failure_class(v1::OUT_OF_MEMORY);
  failure.mutable_failure()->set_message("needs 90 GB, has 80 GB");
  ASSERT_TRUE(report(name, 1, 0, {failure}).ok());
  tests::FakeWorker::die(a_.rank(name, 1, 0), 1, v1::CRASH, "exit code 1");
  run();
  EXPECT_EQ(state(name), "FAILED");
  EXPECT_EQ(get(name).message(), "rank 0 on node a: OUT_OF_MEMORY: needs 90 GB, has 80 GB");
}

TEST_F(Requests, AssignmentsGetANewVersionWithEachChange) {
  connect();
  const uint64_t before = manager_->assignments_version("a");
  const std::string name = submit(small_spec(4));
  EXPECT_EQ(manager_->assignments_version("a"), before);
  manager_->tick();
  const uint64_t placed = manager_->assignments_version("a");
  EXPECT_GT(placed, before);
  ASSERT_TRUE(report(name, 1, 0, {step_event(1, 5)}).ok());
  EXPECT_EQ(manager_->assignments_version("a"), placed);
  ASSERT_TRUE(cancel(name).ok());
  const uint64_t stopped = manager_->assignments_version("a");
  EXPECT_GT(stopped, placed);
  clock_.advance(std::chrono::milliseconds(10));
  open();
  EXPECT_GT(manager_->assignments_version("a"), stopped);
}

TEST(RestartPolicy, DelayDoublesUpTo32Times) {
  EXPECT_EQ(backoff(2, 1), seconds(2));
  EXPECT_EQ(backoff(2, 3), seconds(8));
  EXPECT_EQ(backoff(2, 6), seconds(64));
  EXPECT_EQ(backoff(2, 60), seconds(64));
}

TEST(Draft, RefusesAnIllegalTransition) {
  JobRecord record;
  record.mutable_job()->set_name("projects/default/jobs/x");
  record.mutable_job()->set_state(v1::Job::SUCCEEDED);
  Draft draft(record, {}, {});
  draft.transition(v1::Job::RUNNING, "no");
  EXPECT_EQ(draft.finish().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(draft.job().state(), v1::Job::SUCCEEDED);
}

}  // namespace
}  // namespace telar::server::jobs
