#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/commands/exit_codes.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// What a rank writes, as docs/formats/trace.md has it: one op of 1 ms at its start.
std::string rank_file(int rank, uint64_t step, double start) {
  nlohmann::json json;
  json["telar"] = {
      {"rank", rank},
      {"step", step},
      {"start", start},
      {"seconds", 0.1 + 0.01 * rank},
      {"issued", 0.001},
      {"compute", 0.08},
      {"communication", 0.03},
      {"exposed", 0.02},
      {"wait", 0.005},
      {"idle", 0.0},
      {"lanes",
       {{{"name", "compute"}, {"busy", 0.08}, {"exposed", 0.0}}, {{"name", "dp"}, {"busy", 0.03}, {"exposed", 0.02}}}}};
  json["traceEvents"] = {{{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", "rank"}}}},
                         {{"name", "op"}, {"ph", "X"}, {"ts", 0.0}, {"dur", 1000.0}, {"pid", rank}, {"tid", 0}}};
  return json.dump();
}

class TraceTest : public CommandTest {
 protected:
  TraceTest() {
    char name[] = "/tmp/telar_trace_test_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~TraceTest() override { fs::remove_all(root_); }
  std::string put(const std::string& path, const std::string& content) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content;
    return (root_ / path).string();
  }
  fs::path root_;
};

TEST_F(TraceTest, AFolderOfRanksBecomesOneFileAndATable) {
  put("1/0/trace-12.json", rank_file(0, 12, 1000.5));
  put("1/1/trace-12.json", rank_file(1, 12, 1000.5003));
  put("1/1/plan.json", "{}");
  put("1/1/trace-x.json", "not one");
  const std::string to = (root_ / "all.json").string();
  ASSERT_EQ(trace(context, {.paths = {root_.string()}, .to = to}), kOk) << err.str();
  EXPECT_EQ(out.str(),
            "RANK  STEP MS  COMPUTE  COMM   EXPOSED  WAIT  IDLE\n"
            "0     100.00   80.00    30.00  20.00    5.00  0.00\n"
            "1     110.00   80.00    30.00  20.00    5.00  0.00\n");
  std::ifstream file(to);
  const nlohmann::json merged = nlohmann::json::parse(file);
  ASSERT_EQ(merged["traceEvents"].size(), 4u);
  EXPECT_EQ(merged["traceEvents"][1]["ts"], 0.0);
  EXPECT_NEAR(merged["traceEvents"][3]["ts"].get<double>(), 300, 0.5);  // Rank 1 began 0.3 ms later.
  EXPECT_EQ(merged["traceEvents"][3]["pid"], 1);
  EXPECT_FALSE(merged["traceEvents"][2].contains("ts"));
  EXPECT_EQ(merged["telar"].size(), 2u);
}

TEST_F(TraceTest, WideShowsTheLanesAndJsonTheFigures) {
  const std::string path = put("trace-12.json", rank_file(0, 12, 1000));
  context.options.output = Output::kWide;
  ASSERT_EQ(trace(context, {.paths = {path}}), kOk);
  EXPECT_THAT(out.str(),
              HasSubstr("\nRANK  LANE     BUSY MS  EXPOSED\n0     compute  80.00    0.00\n0     dp       30.00"));
  out.str("");
  context.options.output = Output::kJson;
  ASSERT_EQ(trace(context, {.paths = {path}}), kOk);
  EXPECT_EQ(nlohmann::json::parse(out.str())[0]["exposed"], 0.02);
  context.options.output = Output::kYaml;
  EXPECT_EQ(trace(context, {.paths = {path}}), kUsage);
}

TEST_F(TraceTest, SeveralStepsNeedAChoice) {
  put("0/trace-5.json", rank_file(0, 5, 1000));
  put("0/trace-9.json", rank_file(0, 9, 1001));
  EXPECT_EQ(trace(context, {.paths = {root_.string()}}), kUsage);
  EXPECT_EQ(err.str(), "error: found traces of the steps 5, 9; choose one with --step\n");
  EXPECT_EQ(trace(context, {.paths = {root_.string()}, .step = 9}), kOk);
  EXPECT_EQ(trace(context, {.paths = {root_.string()}, .step = 7}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("found no trace of step 7"));
}

TEST_F(TraceTest, OneRankTwiceIsRefused) {
  put("1/0/trace-5.json", rank_file(0, 5, 1000));
  put("2/0/trace-5.json", rank_file(0, 5, 2000));
  EXPECT_EQ(trace(context, {.paths = {root_.string()}}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("are both of rank 0 at step 5"));
}

TEST_F(TraceTest, WhatIsNoTraceIsNamed) {
  nlohmann::json lacks = nlohmann::json::parse(rank_file(0, 5, 1000));
  lacks["telar"].erase("wait");
  nlohmann::json lane = nlohmann::json::parse(rank_file(0, 5, 1000));
  lane["telar"]["lanes"][1]["busy"] = "long";
  const std::pair<std::string, std::string> cases[] = {{"{\"a\": ", "no JSON object"},
                                                       {"[]", "no JSON object"},
                                                       {"{}", "has no object 'telar'"},
                                                       {lacks.dump(), "telar.wait is no number"},
                                                       {lane.dump(), "telar.lanes has a broken entry"}};
  for (const auto& [content, fault] : cases) {
    const std::string path = put("trace-5.json", content);
    err.str("");
    EXPECT_EQ(trace(context, {.paths = {path}}), kUsage);
    EXPECT_EQ(err.str(), "error: " + path + ": not a trace of a step: " + fault + "\n");
  }
  EXPECT_EQ(trace(context, {.paths = {(root_ / "none.json").string()}}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("cannot read"));
}

}  // namespace
}  // namespace telar::client
