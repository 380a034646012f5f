#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/commands/exit_codes.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanTest : public CommandTest {
 protected:
  PlanTest() {
    char name[] = "/tmp/telar_plan_test_XXXXXX";
    root_ = mkdtemp(name);
    context.jobs = nullptr;  // Nobody is asked.
    context.nodes = nullptr;
  }
  ~PlanTest() override { fs::remove_all(root_); }

  std::string put(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
    return (root_ / name).string();
  }
  std::string job(const std::string& more) {
    return put("job.yaml",
               "name: small\nmodel: {preset: gpt2-124m}\ndata: {train: /x, format: llmc_bin}\n"
               "schedule: {steps: 1000}\n" +
                   more);
  }
  fs::path root_;
};

TEST_F(PlanTest, SaysWhatAJobNeeds) {
  const std::string file = job(
      "batch: {global: 512, micro: 64, sequence_length: 1024}\nresources: {devices: 2}\nparallel: {zero_stage: 1}\n");
  ASSERT_EQ(plan(context, {.file = file}), kOk) << err.str();
  EXPECT_THAT(out.str(),
              AllOf(HasSubstr("small: 124M parameters on 2 x h200"), HasSubstr("tp 1 pp 1 dp 2, zero 1, micro 64"),
                    HasSubstr("ACTIVATIONS"), HasSubstr("tokens/s 1.18M"), HasSubstr("MFU 47."),
                    HasSubstr("run: 524M tokens"), HasSubstr("device hours")));
}

TEST_F(PlanTest, WhatDoesNotFitIsRefusedWithWhatWouldHelp) {
  const std::string file = put("job.yaml",
                               "name: large\nmodel: {preset: llama3-8b}\ndata: {train: /x, format: llmc_bin}\n"
                               "schedule: {steps: 1000}\nbatch: {global: 16, sequence_length: 8192}\n"
                               "resources: {devices: 8}\n");
  EXPECT_EQ(plan(context, {.file = file}), kRefused);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("DOES NOT FIT"), HasSubstr("never: memory: pipeline rank 0 needs"),
                               HasSubstr("parallel.zero_stage: 1 saves"), HasSubstr("which fits")));
}

TEST_F(PlanTest, ProblemsHaveTheirPlace) {
  EXPECT_EQ(plan(context, {.file = job("batch: {global: 7, sequence_length: 1024}\nresources: {devices: 2}\n")}),
            kUsage);
  EXPECT_THAT(err.str(), HasSubstr("job.yaml:5:9: batch.global: 7 is not divisible by parallel.data = 2"));
  err.str("");
  const std::string cluster = put("cluster.yaml", "nodes: 2\ndevises: 8\n");
  const std::string file = job("batch: {global: 8, sequence_length: 1024}\n");
  EXPECT_EQ(plan(context, {.file = file, .cluster = cluster}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("cluster.yaml:2:1"));
  err.str("");
  EXPECT_EQ(plan(context, {.file = file, .gpu = "h300"}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("cluster.gpu: no rates are built in for 'h300'"));
}

TEST_F(PlanTest, AClusterFileCountsAndOptionsOverrideIt) {
  const std::string cluster = put("cluster.yaml", "nodes: 1\ndevices: 4\ngpu: h200\n");
  const std::string file = job("batch: {global: 8, sequence_length: 1024}\nresources: {devices: 8}\n");
  EXPECT_EQ(plan(context, {.file = file, .cluster = cluster}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("8 devices are wanted, the cluster has 1 x 4 = 4"));
  EXPECT_EQ(plan(context, {.file = file, .cluster = cluster, .nodes = 2}), kOk);
}

TEST_F(PlanTest, JsonIsTheWholeForecast) {
  context.options.output = Output::kJson;
  ASSERT_EQ(plan(context, {.file = job("batch: {global: 8, sequence_length: 1024}\n")}), kOk) << err.str();
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_GT(json["step_seconds"].get<double>(), 0);
  EXPECT_EQ(json["ranks"].size(), 1u);
  EXPECT_TRUE(json["fits"].get<bool>());
}

TEST_F(PlanTest, AutoPrecisionIsToldWithBothTimes) {
  const std::string large =
      "name: large\nmodel: {preset: llama3-8b, layers: 8}\ndata: {train: /x, format: llmc_bin}\n"
      "schedule: {steps: 1000}\nbatch: {global: 8, micro: 2, sequence_length: 4096}\nprecision: {compute: auto}\n";
  ASSERT_EQ(plan(context, {.file = put("large.yaml", large)}), kOk) << err.str();
  EXPECT_THAT(out.str(), AllOf(HasSubstr("precision: auto chose fp8: a step takes "), HasSubstr(" ms in bf16 and "),
                               HasSubstr(" ms in fp8, ")));
  out.str("");
  context.options.output = Output::kJson;
  ASSERT_EQ(plan(context, {.file = put("large.yaml", large)}), kOk) << err.str();
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["precision"]["compute"], "FP8");
  EXPECT_EQ(json["precision"]["fp8_step_seconds"], json["step_seconds"]);
  EXPECT_GT(json["precision"]["plain_step_seconds"].get<double>(), json["step_seconds"].get<double>());
  context.options.output = Output::kTable;
  out.str("");
  ASSERT_EQ(plan(context, {.file = put("large.yaml", large + "parallel: auto\nresources: {devices: 2}\n")}), kOk);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("layouts looked at, for h200\nprecision: auto chose fp8: "),
                               HasSubstr("1: fastest of those that fit")));
  EXPECT_EQ(plan(context, {.file = put("large.yaml", large), .sets = {"precision.keep_bf16=[9]"}}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("precision.keep_bf16[0]: '9' is no layer"));
}

TEST_F(PlanTest, WhereRatesComeFromIsSaid) {
  const std::string file = job("batch: {global: 16, sequence_length: 1024}\nresources: {devices: 16}\n");
  ASSERT_EQ(plan(context, {.file = file}), kOk) << err.str();
  EXPECT_THAT(out.str(), AllOf(HasSubstr("rates: h200 measured, network FROM A DATA SHEET, not measured\n"),
                               HasSubstr("note: rates.network: what travels there is timed by a data sheet")));
  out.str("");
  // One node's job has nothing to do with the network.
  ASSERT_EQ(plan(context, {.file = job("batch: {global: 8, sequence_length: 1024}\nresources: {devices: 8}\n")}), kOk);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("rates: h200 measured, links inside a domain measured\n"),
                               Not(HasSubstr("rates.network"))));
}

TEST_F(PlanTest, AMeasuredNetworkReplacesTheDataSheet) {
  const std::string point = "[{bytes: 65536, bytes_per_second: 1e9}, {bytes: 67108864, bytes_per_second: 1e9}]";
  const std::string cluster = put("cluster.yaml", "nodes: 2\nnetwork:\n  origin: measured\n  all_reduce: " + point +
                                                      "\n  all_gather: " + point + "\n  reduce_scatter: " + point +
                                                      "\n  send: " + point + "\n  exchange: " + point + "\n");
  const std::string file = job("batch: {global: 16, sequence_length: 1024}\nresources: {devices: 16}\n");
  context.options.output = Output::kJson;
  const auto planned = [&](const std::string& with) {
    out.str("");
    EXPECT_EQ(plan(context, {.file = file, .cluster = with}), kOk) << err.str();
    return nlohmann::json::parse(out.str());
  };
  const auto sheet = planned(""), measured = planned(cluster);
  EXPECT_EQ(sheet["rates"], nlohmann::json::parse(R"([{"rates": "device", "origin": "MEASURED"},
                                                      {"rates": "network", "origin": "DATA_SHEET"}])"));
  EXPECT_EQ(measured["rates"][1]["origin"], "MEASURED");
  EXPECT_GT(measured["step_seconds"].get<double>(), 2 * sheet["step_seconds"].get<double>());
}

TEST_F(PlanTest, AutoFindsLayoutsForAllOfACluster) {
  const std::string file = job("batch: {global: 256, sequence_length: 1024}\nparallel: auto\n");
  ASSERT_EQ(plan(context, {.file = file, .nodes = 1}), kOk) << err.str();
  EXPECT_THAT(out.str(), AllOf(HasSubstr("layouts looked at, for h200"), HasSubstr("tp 1 pp 1 dp 8, zero 1"),
                               HasSubstr("1: fastest of those that fit"), HasSubstr("10: "), HasSubstr("dropped:"),
                               HasSubstr("slower, by the estimate"), HasSubstr("the first in full:")));
}

}  // namespace
}  // namespace telar::client
