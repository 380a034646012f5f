// list, describe, cancel, nodes, version, explain: one answer, one page.
#include "client/commands/credentials.h"
#include "client/commands/exit_codes.h"
#include "common/errors.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

using BasicTest = CommandTest;

TEST_F(BasicTest, ListReadsAllPagesAndFiltersByState) {
  for (int i = 0; i < 5; ++i) add_job("j-" + std::to_string(i), i < 3 ? v1::Job::RUNNING : v1::Job::FAILED);
  context.options.output = Output::kName;
  EXPECT_EQ(list(context, {}), kOk);
  const std::string names = out.str();
  EXPECT_EQ(std::count(names.begin(), names.end(), '\n'), 5);
  out.str("");
  EXPECT_EQ(list(context, {.states = {"failed", "Queued"}}), kOk);
  EXPECT_EQ(out.str(), "projects/default/jobs/j-3\nprojects/default/jobs/j-4\n");
}

TEST_F(BasicTest, ListRefusesAnUnknownState) {
  EXPECT_EQ(list(context, {.states = {"runing"}}), kUsage);
  EXPECT_EQ(err.str(),
            "error: --state: got 'runing', want one of queued, starting, running, restarting, cancelling, failing, "
            "succeeded, failed, cancelled\n");
}

TEST_F(BasicTest, AnEmptyListSaysSoOnStderr) {
  EXPECT_EQ(list(context, {}), kOk);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(err.str(), "no jobs\n");
}

TEST_F(BasicTest, DescribeInEveryFormat) {
  add_job("j-1", v1::Job::RUNNING);
  for (const Output format : {Output::kTable, Output::kWide, Output::kJson, Output::kYaml, Output::kName}) {
    out.str("");
    context.options.output = format;
    EXPECT_EQ(describe(context, "j-1"), kOk);
    EXPECT_NE(out.str().find("projects/default/jobs/j-1"), std::string::npos) << out.str();
  }
  EXPECT_EQ(describe(context, "j-2"), kNotFound);
}

// Reads do not wait for a coordinator that is simply away; they do when the next one is about to answer.
TEST_F(BasicTest, ReadsWaitOutAFailover) {
  add_job("j-1", v1::Job::RUNNING);
  coordinator.service.read_answers = {{grpc::StatusCode::UNAVAILABLE, "busy"}};
  EXPECT_EQ(list(context, {}), kUnreachable);

  const std::string standby = "this coordinator does not lead; the leader is 10.0.0.2:7070";
  const auto not_leader = to_grpc(error(absl::StatusCode::kUnavailable, "NOT_LEADER", standby));
  const auto leaving =
      to_grpc(error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "the coordinator is shutting down"));
  for (const auto& [first, said] : {std::pair(not_leader, standby), {leaving, "the coordinator is shutting down"}}) {
    coordinator.service.read_answers = {first, {grpc::StatusCode::UNAVAILABLE, "gone"}, first};
    err.str("");
    EXPECT_EQ(describe(context, "j-1"), kOk);
    EXPECT_EQ(err.str(), said + "; retrying\n") << "said once";
  }

  context.options.coordinator += ",127.0.0.1:1";
  coordinator.service.read_answers = {{grpc::StatusCode::UNAVAILABLE, "gone"}, {grpc::StatusCode::UNAVAILABLE, ""}};
  err.str("");
  EXPECT_EQ(list(context, {}), kOk);
  EXPECT_EQ(err.str(), "no answer from " + context.options.coordinator + ", retrying\n");
  context.options.timeout = Milliseconds(300);
  coordinator.service.read_answers.assign(20, {grpc::StatusCode::UNAVAILABLE, "gone"});
  EXPECT_EQ(list(context, {}), kUnreachable) << "until the timeout";
  EXPECT_GT(coordinator.service.read_answers.size(), 10u);
}

TEST_F(BasicTest, CancelRetriesWithTheSameRequestId) {
  add_job("j-1", v1::Job::RUNNING);
  coordinator.service.cancel_answers = {{grpc::StatusCode::UNAVAILABLE, "busy"}};
  EXPECT_EQ(cancel(context, {.job = "j-1"}), kOk);
  EXPECT_EQ(out.str(), "j-1 CANCELLING\n");
  ASSERT_EQ(coordinator.service.cancels.size(), 2u);
  EXPECT_EQ(coordinator.service.cancels[0].request_id(), coordinator.service.cancels[1].request_id());
}

TEST_F(BasicTest, CancelWaitsForTheEnd) {
  v1::Job& job = add_job("j-1", v1::Job::RUNNING);
  add_event(job, v1::Job::RUNNING, v1::Job::CANCELLING);
  coordinator.service.on_watch_end = [](v1::Job& watched) { watched.set_state(v1::Job::CANCELLED); };
  EXPECT_EQ(cancel(context, {.job = "j-1", .wait = true}), kOk);
  EXPECT_EQ(out.str(), "j-1 CANCELLED\n");
}

TEST_F(BasicTest, CancelThatComesTooLate) {
  add_job("j-1", v1::Job::SUCCEEDED);
  coordinator.service.cancel_answers = {{grpc::StatusCode::FAILED_PRECONDITION, "j-1 is SUCCEEDED"}};
  EXPECT_EQ(cancel(context, {.job = "j-1"}), kRefused);
  coordinator.service.on_watch_end = [](v1::Job& watched) { watched.set_state(v1::Job::SUCCEEDED); };
  EXPECT_EQ(cancel(context, {.job = "j-1", .wait = true}), kRefused) << "it succeeded while being cancelled";
}

TEST_F(BasicTest, CancelEndsAWholeArrayTheWaitingOnesFirst) {
  for (const char* id : {"x-0", "x-1", "x-2", "x-3"}) {
    add_job(id, v1::Job::QUEUED).set_array("projects/default/jobs/x-0");
  }
  add_job("x-0", v1::Job::RUNNING).set_array("projects/default/jobs/x-0");
  add_job("x-3", v1::Job::SUCCEEDED).set_array("projects/default/jobs/x-0");
  add_job("other", v1::Job::RUNNING);
  EXPECT_EQ(cancel(context, {.job = "x-1", .array = true}), kOk) << err.str();
  std::vector<std::string> names;
  for (const auto& request : coordinator.service.cancels) names.push_back(request.name());
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(names.back(), "projects/default/jobs/x-0");
  EXPECT_EQ(cancel(context, {.job = "other", .array = true}), kUsage);
  err.str("");
  add_job("y-0", v1::Job::CANCELLED).set_array("projects/default/jobs/y-0");
  EXPECT_EQ(cancel(context, {.job = "y-0", .array = true}), kOk);
  EXPECT_EQ(err.str(), "every task of y-0 has ended\n");
}

TEST_F(BasicTest, NodesAndVersion) {
  EXPECT_EQ(nodes(context), kOk);
  EXPECT_NE(out.str().find("node-a"), std::string::npos);
  out.str("");
  EXPECT_EQ(version(context, false), kOk);
  EXPECT_NE(out.str().find("coordinator 9.8.7+abc\n"), std::string::npos) << out.str();
  coordinator.stop();
  EXPECT_EQ(version(context, true), kOk) << "the client's own needs no coordinator";
  EXPECT_EQ(version(context, false), kUnreachable);
  EXPECT_EQ(nodes(context), kUnreachable);
}

TEST_F(BasicTest, ExplainAnUnknownField) {
  EXPECT_EQ(explain(context, "model.layer"), kUsage);
  EXPECT_EQ(err.str(), "error: model.layer: unknown field 'layer'; did you mean 'layers'?\n");
}

TEST(ContextTest, AddressesAreChecked) {
  for (const char* good : {"127.0.0.1:7070", "head:1", "[::1]:7070", "unix:/run/telar.sock"}) {
    EXPECT_TRUE(open_channel({.coordinator = good}, nullptr).ok()) << good;
  }
  for (const char* bad : {"", "head", ":7070", "head:", "head:0", "head:65536", "head:x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(open_channel({.coordinator = bad}, nullptr).status())) << bad;
  }
}

TEST(ContextTest, Durations) {
  EXPECT_EQ(parse_duration("90"), Milliseconds(90'000));
  EXPECT_EQ(parse_duration("1.5m"), Milliseconds(90'000));
  EXPECT_EQ(parse_duration("250ms"), Milliseconds(250));
  EXPECT_EQ(parse_duration("2h"), Milliseconds(7'200'000));
  for (const char* bad : {"", "0", "-1s", "1d", "s", "1 s", "1e9h", "nan", "inf"}) {
    EXPECT_FALSE(parse_duration(bad)) << bad;
  }
}

TEST_F(BasicTest, ReleasesADevice) {
  EXPECT_EQ(release_device(context, {.node = "node-a", .device = "gpu:3"}), kOk) << err.str();
  ASSERT_EQ(coordinator.nodes.releases.size(), 1u);
  EXPECT_EQ(coordinator.nodes.releases[0].name(), "node-a");
  EXPECT_EQ(coordinator.nodes.releases[0].kind(), v1::ResourceSpec::GPU);
  EXPECT_EQ(coordinator.nodes.releases[0].index(), 3u);
  EXPECT_FALSE(coordinator.nodes.releases[0].request_id().empty());
  EXPECT_NE(out.str().find("node-a"), std::string::npos);
  for (const char* bad : {"gpu", "gpu:", "tpu:1", ":1", "gpu:-1"}) {
    EXPECT_EQ(release_device(context, {.node = "node-a", .device = bad}), kUsage) << bad;
  }
  coordinator.nodes.refusal = {grpc::StatusCode::FAILED_PRECONDITION, "still there"};
  EXPECT_EQ(release_device(context, {.node = "node-a", .device = "cpu:0"}), kRefused);
}

}  // namespace
}  // namespace telar::client
