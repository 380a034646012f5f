// explain, update, queues, nodes cordon, arrays and dry runs: what people see of the scheduler.
#include "client/commands/exit_codes.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

class SchedulingTest : public CommandTest {
 protected:
  v1::Job& waiting_job() {
    v1::Job& job = add_job("j-1", v1::Job::QUEUED);
    job.mutable_spec()->mutable_scheduling()->set_queue("default");
    v1::Waiting& waiting = *job.mutable_waiting();
    waiting.set_reason(v1::Waiting::SHAPE);
    waiting.set_message("needs 4 GPU devices; 4 free of 8");
    waiting.set_unblock("a domain becomes free");
    waiting.mutable_earliest_start()->set_seconds(4'000'000'000);
    waiting.add_behind("projects/default/jobs/j-0");
    v1::DeviceCount& free = *waiting.add_devices();
    free.set_why("free");
    free.set_devices(4);
    free.set_nodes(2);
    return job;
  }
};

TEST_F(SchedulingTest, ExplainSaysWhyAJobWaits) {
  v1::Job& job = waiting_job();
  EXPECT_EQ(explain(context, "j-1"), kOk) << err.str();
  for (const char* line :
       {"Job:         j-1\n", "State:       QUEUED\n", "Queue:       default, priority 0\n", "Waits for:   shape\n",
        "Why:         needs 4 GPU devices; 4 free of 8\n", "Starts once: a domain becomes free\n",
        "Starts:      2096-10-02T07:06:40Z (in ", "Behind:      j-0\n", "  free     4      2\n"}) {
    EXPECT_NE(out.str().find(line), std::string::npos) << line << " in\n" << out.str();
  }
  out.str("");
  job.mutable_waiting()->set_never(true);
  job.mutable_waiting()->clear_earliest_start();
  EXPECT_EQ(explain(context, "demo"), kOk) << err.str();  // By its label.
  EXPECT_NE(out.str().find("Waits for:   shape, never\n"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("Starts:      never, as it is\n"), std::string::npos) << out.str();
  out.str("");
  context.options.output = Output::kJson;
  EXPECT_EQ(explain(context, "j-1"), kOk);
  EXPECT_NE(out.str().find("\"reason\": \"SHAPE\""), std::string::npos) << out.str();
}

TEST_F(SchedulingTest, ExplainKnowsFieldsFromJobs) {
  EXPECT_EQ(explain(context, "scheduling.priority"), kOk);
  EXPECT_NE(out.str().find("-1000 to 1000"), std::string::npos) << out.str();
  EXPECT_EQ(explain(context, "modle"), kUsage);
  EXPECT_EQ(err.str(), "error: modle: unknown field 'modle'; did you mean 'model'?; nor is it a job\n");
  coordinator.stop();
  EXPECT_EQ(explain(context, "model"), kOk);
  EXPECT_EQ(explain(context, "j-1"), kUnreachable);
}

TEST_F(SchedulingTest, ARunningJobIsExplainedByWhereItRuns) {
  v1::Job& job = add_job("j-2", v1::Job::RUNNING);
  job.add_placement()->set_node("node-x");
  EXPECT_EQ(explain(context, "j-2"), kOk);
  EXPECT_NE(out.str().find("node-x"), std::string::npos) << out.str();
}

TEST_F(SchedulingTest, UpdateSendsOnlyWhatWasGiven) {
  add_job("j-1", v1::Job::QUEUED);
  EXPECT_EQ(update(context, {.job = "j-1", .etag = "7", .priority = 5, .time_limit = Milliseconds(90'500)}), kOk);
  const v1::UpdateJobRequest& sent = coordinator.service.updates.at(0);
  EXPECT_EQ(sent.update_mask().paths_size(), 2);
  EXPECT_EQ(sent.update_mask().paths(0), "spec.scheduling.priority");
  EXPECT_EQ(sent.job().spec().scheduling().time_limit_seconds(), 91u);
  EXPECT_EQ(sent.etag(), "7");
  EXPECT_FALSE(sent.request_id().empty());
  EXPECT_EQ(out.str(), "j-1 queue , priority 5, not preemptible, at most 1m31s\n");
  EXPECT_EQ(update(context, {.job = "j-1"}), kUsage);
  EXPECT_EQ(update(context, {.job = "j-9", .priority = 1}), kNotFound);
}

TEST_F(SchedulingTest, QueuesInATable) {
  EXPECT_EQ(queues(context), kOk);
  EXPECT_EQ(out.str(),
            "QUEUE   PRIORITY  WEIGHT  QUOTA  HELD  RUNNING  QUEUED  WANTED\n"
            "urgent  10        2.5     -      3     0        0       0\n");
  out.str("");
  context.options.output = Output::kName;
  EXPECT_EQ(queues(context), kOk);
  EXPECT_EQ(out.str(), "urgent\n");
}

TEST_F(SchedulingTest, NodesAreClosedAndOpened) {
  EXPECT_EQ(cordon_node(context, {"a", "fan"}), kOk);
  EXPECT_EQ(drain_node(context, {"a", ""}), kOk);
  EXPECT_EQ(uncordon_node(context, {"a", ""}), kOk);
  EXPECT_EQ(out.str(), "a CORDONED\na DRAINING\na OPEN\n");
  EXPECT_EQ(coordinator.nodes.calls, (std::vector<std::string>{"cordon a: fan", "drain a: ", "uncordon a"}));
  EXPECT_EQ(drain_node(context, {"nobody", ""}), kNotFound);
}

TEST_F(SchedulingTest, AnArrayPrintsTheIdsOfItsTasks) {
  in.str("name: demo\narray: {size: 3}\n");
  EXPECT_EQ(submit(context, {.file = "-"}), kOk) << err.str();
  EXPECT_EQ(out.str(), "x1-0\nx1-1\nx1-2\n");
  EXPECT_TRUE(coordinator.service.creates.empty());
  EXPECT_FALSE(coordinator.service.arrays.at(0).request_id().empty());
  in.clear();
  in.str("name: demo\narray: {size: 3}\n");
  EXPECT_EQ(submit(context, {.file = "-", .watch = true}), kUsage);
  in.clear();
  in.str("name: demo\narray: {size: 3}\n");
  EXPECT_EQ(submit(context, {.file = "-", .dry_run = true}), kOk);
  EXPECT_TRUE(coordinator.service.arrays.back().validate_only());
  EXPECT_NE(err.str().find("3 tasks; of the first:\n"), std::string::npos) << err.str();
}

TEST_F(SchedulingTest, ADryRunSaysWhereOrWhyNot) {
  in.str("name: demo\n");
  coordinator.service.on_dry_run = [](v1::Job& job) {
    v1::RankPlacement& place = *job.add_placement();
    place.set_node("node-a");
    place.mutable_device()->set_kind(v1::ResourceSpec::GPU);
    place.mutable_device()->set_index(3);
  };
  EXPECT_EQ(submit(context, {.file = "-", .dry_run = true}), kOk);
  EXPECT_NE(err.str().find("it would start at once, on 1 device\nPlacement:\n"), std::string::npos) << err.str();
  EXPECT_NE(err.str().find("node-a  gpu:3"), std::string::npos) << err.str();
  err.str("");
  in.clear();
  in.str("name: demo\n");
  coordinator.service.on_dry_run = [](v1::Job& job) { job.mutable_waiting()->set_message("2 free of 8"); };
  EXPECT_EQ(submit(context, {.file = "-", .dry_run = true}), kOk);
  EXPECT_NE(err.str().find("it would wait\n"), std::string::npos) << err.str();
  EXPECT_NE(err.str().find("2 free of 8"), std::string::npos) << err.str();
}

}  // namespace
}  // namespace telar::client
