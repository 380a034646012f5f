// Whole pages against tests/client/golden/.
#include <gtest/gtest.h>

#include "client/output/describe.h"
#include "client/output/jobs.h"
#include "client/output/message.h"
#include "client/output/nodes.h"
#include "tests/client/output/golden.h"

namespace telar::client {
namespace {

constexpr int64_t kNow = 1'800'000'000;  // 2027-01-15T08:00:00Z

v1::Job running() {
  return parse<v1::Job>(R"(
    name: "projects/default/jobs/gpt2-x7k2" uid: "0b9f2f3e-9d0c-4d7e-8a55-0d2f6a3c1e42" state: RUNNING epoch: 2
    node_restarts: 1 message: "node-b came back" parameters: 124439808 run_dir: "/runs/gpt2-x7k2"
    create_time { seconds: 1799992800 } start_time { seconds: 1799992810 }
    spec { name: "gpt2" model { preset: "gpt2-124m" layers: 12 tied_head: true } data { train: "/data/*.bin" format: LLMC_BIN }
           parallel { data: 2 tensor: 1 pipeline: 1 } resources { devices: 2 kind: GPU } optimizer { learning_rate: 3e-4 clip_norm: 0 } }
    placement { rank: 0 node: "node-a" state: RUNNING pid: 4711 device { kind: GPU index: 3 } }
    placement { rank: 1 node: "node-b" state: EXITED exit_code: 137 device { kind: GPU } message: "killed by signal 9" }
    progress { step: 120 total_steps: 1000 loss: 3.4512 first_loss: 10.9876 eval_loss: 3.5 tokens_per_second: 477123
               mfu: 0.387 eta_seconds: 192 checkpoint_step: 100 checkpoint_path: "/runs/gpt2-x7k2/ckpt/step-00000100"
               resumed_from: "/runs/gpt2-x7k2/ckpt/step-00000080"
               passed_over: "/runs/gpt2-x7k2/ckpt/step-00000090: manifest.json ends" })");
}

v1::Job succeeded() {
  v1::Job job = running();
  job.set_state(v1::Job::SUCCEEDED);
  job.clear_message();
  job.mutable_end_time()->set_seconds(1'799'996'410);
  job.mutable_progress()->set_step(1000);
  job.mutable_progress()->set_mfu(0);
  job.mutable_progress()->set_sample("In the beginning\nGod created \x1b[31mthe heaven\n");
  return job;
}

v1::Job failed() {
  return parse<v1::Job>(R"(
    name: "projects/default/jobs/llama-q1" state: FAILED failure_class: NUMERIC
    message: "rank 0 at step 7: loss is not finite" create_time { seconds: 1799999990 }
    spec { resources { devices: 16 } } progress { step: 7 total_steps: 10 first_loss: 11 loss: 11.5 })");
}

v1::ListJobsResponse all_jobs() {
  v1::ListJobsResponse jobs;
  *jobs.add_jobs() = failed();
  *jobs.add_jobs() = running();
  v1::Job* queued = jobs.add_jobs();
  queued->set_name("projects/default/jobs/waiting-w1");
  queued->mutable_spec()->set_name("waiting");
  queued->set_state(v1::Job::QUEUED);
  queued->set_message("waits for 8 devices, 2 free");
  return jobs;
}

v1::ListNodesResponse all_nodes() {
  return parse<v1::ListNodesResponse>(R"(
    nodes { name: "node-a" state: READY version: "0.1.0" metrics_address: "10.0.0.1:9464"
            register_time { seconds: 1799900000 } heartbeat_time { seconds: 1799999999 }
            devices { device { kind: GPU model: "NVIDIA H200" memory_bytes: 150754820096 } job: "projects/default/jobs/gpt2-x7k2" }
            devices { device { kind: GPU index: 1 model: "NVIDIA H200" memory_bytes: 150754820096 } } }
    nodes { name: "node-b" state: LOST devices { device { kind: CPU model: "cpu" memory_bytes: 8589934592 } }
            heartbeat_time { seconds: 1799999000 } }
    nodes { name: "bare" state: UNKNOWN })");
}

TEST(GoldenTest, Jobs) {
  expect_golden("list.txt", jobs_table(all_jobs(), false, true, kNow));
  expect_golden("list_wide.txt", jobs_table(all_jobs(), true, true, kNow));
  expect_golden("list_no_headers.txt", jobs_table(all_jobs(), false, false, kNow));
}

TEST(GoldenTest, Describe) {
  expect_golden("describe_running.txt", describe_page(running(), kNow));
  expect_golden("describe_failed.txt", describe_page(failed(), kNow));
}

TEST(GoldenTest, DescribeHasTheEvaluationOfEachSource) {
  v1::Job job = running();
  for (const char* text : {"name: 'web' loss: 3.75", "name: 'code' loss: 1.5"}) {
    *job.mutable_progress()->add_eval_sources() = parse<v1::SourceLoss>(text);
  }
  const std::string page = describe_page(job, kNow);
  EXPECT_NE(page.find("Eval loss:   3.5000 (web 3.7500, code 1.5000)\n"), std::string::npos) << page;
}

TEST(GoldenTest, DescribeHasTheCoordinatesOfEveryRank) {
  v1::Job job = parse<v1::Job>("name: 'projects/default/jobs/j' spec { parallel { data: 3 tensor: 2 pipeline: 2 } }");
  for (uint32_t rank = 0; rank < 12; ++rank) {
    v1::RankPlacement& place = *job.add_placement();
    place.set_rank(rank);
    place.set_node("n");
    place.mutable_device()->set_index(rank);
  }
  const std::string page = describe_page(job, kNow);
  EXPECT_NE(page.find("RANK  PP  DP  TP  NODE"), std::string::npos) << page;
  EXPECT_NE(page.find("\n  0     0   0   0   n "), std::string::npos) << page;
  EXPECT_NE(page.find("\n  3     0   1   1   n "), std::string::npos) << page;
  EXPECT_NE(page.find("\n  6     1   0   0   n "), std::string::npos) << page;
  EXPECT_NE(page.find("\n  11    1   2   1   n "), std::string::npos) << page;
}

TEST(GoldenTest, DescribeTellsOfConditionsAndOfTheReplicasThatRun) {
  v1::Job job = parse<v1::Job>(R"(
    name: 'projects/default/jobs/j' spec { parallel { data: 4 tensor: 1 pipeline: 2 } } data_parallel: 1
    placement { rank: 1 node: 'n' }
    conditions { type: 'HANG' message: 'rank 1 on node b is not in all_reduce 8 of group shard.0' })");
  job.mutable_conditions(0)->mutable_time()->set_seconds(kNow - 120);
  const std::string page = describe_page(job, kNow);
  EXPECT_NE(page.find("\nCondition:   HANG, 2027-01-15T07:58:00Z: rank 1 on node b is not in all_reduce 8 of group "
                      "shard.0\n"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("\n  1     1   0   0   n "), std::string::npos) << page;
}

TEST(GoldenTest, DescribeTellsOfARetryThatIsToComeAndOfNoOther) {
  v1::Job job = parse<v1::Job>("name: 'projects/default/jobs/j' state: QUEUED preemptions: 1");
  job.mutable_retry_time()->set_seconds(kNow + 30);
  std::string page = describe_page(job, kNow);
  EXPECT_NE(page.find("Retry:       not before 2027-01-15T08:00:30Z\n"), std::string::npos) << page;
  EXPECT_NE(page.find("Preempted:   once\n"), std::string::npos) << page;
  job.mutable_retry_time()->set_seconds(kNow);
  job.set_preemptions(2);
  page = describe_page(job, kNow);
  EXPECT_EQ(page.find("Retry:"), std::string::npos) << page;
  EXPECT_NE(page.find("Preempted:   2 times\n"), std::string::npos) << page;
}

TEST(GoldenTest, ClosedNodesAndDevicesHaveTheirReasons) {
  const auto nodes = parse<v1::ListNodesResponse>(R"(
    nodes { name: 'a' scheduling: OPEN scheduling_reason: 'of old' }
    nodes { name: 'b' scheduling: CORDONED scheduling_reason: 'ann: new fans' }
    nodes { name: 'c' scheduling: DRAINED })");
  EXPECT_EQ(closed_lines(nodes), "b is cordoned: ann: new fans\n");
}

TEST(GoldenTest, Summary) {
  expect_golden("summary_succeeded.txt", summary(succeeded()));
  expect_golden("summary_failed.txt", summary(failed()));
}

TEST(GoldenTest, Nodes) {
  expect_golden("nodes.txt", nodes_table(all_nodes(), false, true, kNow));
  expect_golden("nodes_wide.txt", nodes_table(all_nodes(), true, true, kNow));
}

TEST(GoldenTest, Messages) {
  expect_golden("job.yaml", to_yaml(running()));
  expect_golden("job.json", to_json(running()));
}

}  // namespace
}  // namespace telar::client
