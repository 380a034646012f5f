#include "client/commands/exit_codes.h"
#include "common/errors.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

class SubmitTest : public CommandTest {
 protected:
  SubmitTest() { in.str("name: demo\nmodel:\n  layers: 2\nbatch:\n  global: 10\n"); }
  SubmitOptions from_stdin() { return {.file = "-"}; }
};

TEST_F(SubmitTest, PrintsTheIdOnStdoutAndNothingElse) {
  EXPECT_EQ(submit(context, from_stdin()), kOk);
  EXPECT_EQ(out.str(), "demo-x1\n");
  EXPECT_EQ(err.str(), "");
  ASSERT_EQ(coordinator.service.creates.size(), 1u);
  EXPECT_EQ(coordinator.service.creates[0].spec().model().layers(), 2u);
  EXPECT_FALSE(coordinator.service.creates[0].validate_only());
}

TEST_F(SubmitTest, RetriesWithTheSameRequestId) {
  coordinator.service.create_answers = {{grpc::StatusCode::UNAVAILABLE, "busy"}, {grpc::StatusCode::UNAVAILABLE, ""}};
  EXPECT_EQ(submit(context, from_stdin()), kOk);
  ASSERT_EQ(coordinator.service.creates.size(), 3u);
  EXPECT_FALSE(coordinator.service.creates[0].request_id().empty());
  EXPECT_EQ(coordinator.service.creates[0].request_id(), coordinator.service.creates[2].request_id());
  EXPECT_EQ(err.str(), "no answer from " + coordinator.address() + ", retrying\n") << "said once";
}

TEST_F(SubmitTest, GivesUpRetryingAtTheTimeout) {
  context.options.timeout = Milliseconds(250);
  for (int i = 0; i < 50; ++i) coordinator.service.create_answers.push_back({grpc::StatusCode::UNAVAILABLE, "busy"});
  EXPECT_EQ(submit(context, from_stdin()), kUnreachable);
}

TEST_F(SubmitTest, GoesToTheProjectAndTakesARequestId) {
  context.options.project = "lab";
  EXPECT_EQ(submit(context, {.file = "-", .request_id = "night-7"}), kOk);
  EXPECT_EQ(coordinator.service.creates[0].parent(), "projects/lab");
  EXPECT_EQ(coordinator.service.creates[0].request_id(), "night-7");
}

TEST_F(SubmitTest, TwoSubmitsAreTwoRequests) {
  EXPECT_EQ(submit(context, from_stdin()), kOk);
  in.clear();
  in.str("name: demo\n");
  EXPECT_EQ(submit(context, from_stdin()), kOk);
  EXPECT_NE(coordinator.service.creates[0].request_id(), coordinator.service.creates[1].request_id());
}

TEST_F(SubmitTest, DryRunStoresNothingAndPrintsTheCompleteSpec) {
  EXPECT_EQ(submit(context, {.file = "-", .dry_run = true}), kOk);
  EXPECT_TRUE(coordinator.service.creates[0].validate_only());
  EXPECT_TRUE(coordinator.service.jobs.empty());
  EXPECT_NE(out.str().find("checkpoint:\n  keep: 2\n"), std::string::npos) << out.str();
  EXPECT_EQ(err.str(), "-: valid; nothing was submitted\n");
}

TEST_F(SubmitTest, DryRunSaysWhatWasChosen) {
  coordinator.service.on_dry_run = [](v1::Job& job) { job.set_message("precision: auto chose bf16: because"); };
  EXPECT_EQ(submit(context, {.file = "-", .dry_run = true}), kOk);
  EXPECT_EQ(err.str(), "precision: auto chose bf16: because\n-: valid; nothing was submitted\n");
}

TEST_F(SubmitTest, SetAndNameReplaceWhatTheFileSays) {
  EXPECT_EQ(submit(context, {.file = "-", .name = "other", .sets = {"model.layers=4", "data.train=[a, b]"}}), kOk);
  const v1::JobSpec& spec = coordinator.service.creates[0].spec();
  EXPECT_EQ(spec.name(), "other");
  EXPECT_EQ(spec.model().layers(), 4u);
  EXPECT_EQ(spec.data().train_size(), 2);
}

TEST_F(SubmitTest, ABadSpecNeverReachesTheCoordinator) {
  in.str("nam: demo\nmodel:\n  layers: many\n");
  EXPECT_EQ(submit(context, {.file = "-", .sets = {"batch.global=-1"}}), kUsage);
  EXPECT_TRUE(coordinator.service.creates.empty());
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(
      err.str(),
      "error: standard input:1:1: unknown field 'nam'; did you mean 'name'?\n"
      "error: standard input:3:11: model.layers: got 'many', want an integer from 0 to 4294967295 (suffixes k M G "
      "Ki Mi Gi)\n"
      "error: --set: batch.global: got '-1', want an integer from 0 to 4294967295 (suffixes k M G Ki Mi Gi)\n");
}

TEST_F(SubmitTest, TheCoordinatorsViolationsAreShownAtTheirPlace) {
  coordinator.service.create_answers = {
      to_grpc(invalid({{"spec.batch.global", "10 is not divisible by 4"}, {"spec.data.train", "is empty"}}))};
  EXPECT_EQ(submit(context, from_stdin()), kUsage);
  EXPECT_EQ(err.str(),
            "error: standard input:5:3: batch.global: 10 is not divisible by 4\n"
            "error: standard input: data.train: is empty\n");
}

TEST_F(SubmitTest, NoCapacityIsARefusal) {
  coordinator.service.create_answers = {
      to_grpc(error(absl::StatusCode::kFailedPrecondition, "NO_CAPACITY", "8 devices wanted, the cluster has 2"))};
  EXPECT_EQ(submit(context, from_stdin()), kRefused);
  EXPECT_EQ(err.str(), "error: 8 devices wanted, the cluster has 2\n");
}

TEST_F(SubmitTest, WatchAndWaitMirrorTheJob) {
  v1::Job job;
  add_event(job, v1::Job::QUEUED, v1::Job::FAILED);
  coordinator.service.on_watch_end = [](v1::Job& watched) {
    watched.set_state(v1::Job::FAILED);
    watched.set_message("rank 0: loss is not finite");
  };
  EXPECT_EQ(submit(context, {.file = "-", .watch = true}), kJobFailed);
  EXPECT_TRUE(out.str().starts_with("demo-x1\nJob demo-x1 FAILED")) << out.str();
  in.clear();
  in.str("name: demo\n");
  out.str("");
  err.str("");
  EXPECT_EQ(submit(context, {.file = "-", .wait = true}), kJobFailed);
  EXPECT_EQ(out.str(), "demo-x1\n");
  EXPECT_EQ(err.str(), "error: job demo-x1 FAILED: rank 0: loss is not finite\n");
}

TEST_F(SubmitTest, AMissingFileIsOneLine) {
  EXPECT_EQ(submit(context, {.file = "/no/such.yaml"}), kUsage);
  EXPECT_EQ(err.str(), "error: /no/such.yaml: cannot be opened: No such file or directory\n");
}

}  // namespace
}  // namespace telar::client
