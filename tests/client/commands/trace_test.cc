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
  ASSERT_EQ(trace(context, {.of = {root_.string()}, .to = to}), kOk) << err.str();
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
  ASSERT_EQ(trace(context, {.of = {path}}), kOk);
  EXPECT_THAT(out.str(),
              HasSubstr("\nRANK  LANE     BUSY MS  EXPOSED\n0     compute  80.00    0.00\n0     dp       30.00"));
  out.str("");
  context.options.output = Output::kJson;
  ASSERT_EQ(trace(context, {.of = {path}}), kOk);
  EXPECT_EQ(nlohmann::json::parse(out.str())[0]["exposed"], 0.02);
  context.options.output = Output::kYaml;
  EXPECT_EQ(trace(context, {.of = {path}}), kUsage);
}

TEST_F(TraceTest, SeveralStepsNeedAChoice) {
  put("0/trace-5.json", rank_file(0, 5, 1000));
  put("0/trace-9.json", rank_file(0, 9, 1001));
  EXPECT_EQ(trace(context, {.of = {root_.string()}}), kUsage);
  EXPECT_EQ(err.str(), "error: found traces of the steps 5, 9; choose one with --step\n");
  EXPECT_EQ(trace(context, {.of = {root_.string()}, .step = "9"}), kOk);
  EXPECT_EQ(trace(context, {.of = {root_.string()}, .step = "7"}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("found no trace of step 7"));
}

TEST_F(TraceTest, OneRankTwiceIsRefused) {
  put("1/0/trace-5.json", rank_file(0, 5, 1000));
  put("2/0/trace-5.json", rank_file(0, 5, 2000));
  EXPECT_EQ(trace(context, {.of = {root_.string()}}), kUsage);
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
    EXPECT_EQ(trace(context, {.of = {path}}), kUsage);
    EXPECT_EQ(err.str(), "error: " + path + ": not a trace of a step: " + fault + "\n");
  }
  EXPECT_EQ(trace(context, {.of = {(root_ / "none.json").string()}}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("cannot read"));
}

class JobTraceTest : public TraceTest {
 protected:
  JobTraceTest() {
    job_ = &add_job("abc", v1::Job::RUNNING);
    job_->add_placement();
    job_->add_placement()->set_rank(1);
    job_->mutable_progress()->set_step(23);
    to_ = (root_ / "all.json").string();
  }
  v1::JobTrace& there(uint64_t step, v1::JobTrace::State state, uint32_t recorded = 2, uint32_t missed = 0) {
    v1::JobTrace& trace = *job_->add_traces();
    trace.set_step(step);
    trace.set_state(state);
    trace.set_recorded(recorded);
    trace.set_missed(missed);
    for (uint32_t rank = 0; rank < recorded; ++rank) {
      coordinator.service.traces.files[{step, rank}] = rank_file(static_cast<int>(rank), step, 1000);
    }
    return trace;
  }
  int run(const std::string& step, uint32_t steps = 1) {
    return trace(context, {.of = {"abc"}, .step = step, .steps = steps, .to = to_});
  }
  size_t ranks_in_file() const {
    std::ifstream file(to_);
    return nlohmann::json::parse(file)["telar"].size();
  }
  v1::Job* job_;
  std::string to_;
};

TEST_F(JobTraceTest, WhatIsThereIsFetchedAndNothingAsked) {
  there(5, v1::JobTrace::RECORDED);
  there(9, v1::JobTrace::RECORDED);
  EXPECT_EQ(run("5"), kOk) << err.str();
  EXPECT_EQ(ranks_in_file(), 2u);
  EXPECT_TRUE(coordinator.service.traces.asked.empty());
  EXPECT_THAT(out.str(), HasSubstr("\n1     110.00"));
  EXPECT_THAT(err.str(), HasSubstr("all.json: 2 ranks"));
  EXPECT_EQ(run(""), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("which step? --step N of one to come, --step next, or one that is there: 5, 9"));
  EXPECT_EQ(run("soon"), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("--step: got 'soon', want the number of a step, or next"));
  EXPECT_EQ(trace(context, {.of = {"abc", "def"}, .step = "5"}), kUsage);
}

TEST_F(JobTraceTest, AStepToComeIsAskedForWaitedForAndFetched) {
  int looks = 0;
  coordinator.service.on_get = [&](v1::Job& job) {
    if (job.traces().empty() || ++looks < 2) return;
    v1::JobTrace& trace = *job.mutable_traces(0);
    trace.set_state(v1::JobTrace::RECORDED);
    trace.set_recorded(2);
    for (const uint32_t rank : {0u, 1u}) {
      coordinator.service.traces.files[{40, rank}] = rank_file(static_cast<int>(rank), 40, 1000);
    }
  };
  EXPECT_EQ(run("next"), kOk) << err.str();
  ASSERT_EQ(coordinator.service.traces.asked.size(), 1u);
  EXPECT_EQ(coordinator.service.traces.asked[0].step(), 0u);
  EXPECT_FALSE(coordinator.service.traces.asked[0].request_id().empty());
  EXPECT_THAT(err.str(), HasSubstr("waiting for step 40: RUNNING at step 23"));
  EXPECT_EQ(ranks_in_file(), 2u);
}

TEST_F(JobTraceTest, ABrokenStreamGoesOnWhereItWas) {
  there(5, v1::JobTrace::RECORDED);
  coordinator.service.break_streams_after = {1, 2};  // In the first file, of two pieces, and in the second.
  EXPECT_EQ(run("5"), kOk) << err.str();
  EXPECT_EQ(ranks_in_file(), 2u);
  const auto& reads = coordinator.service.traces.reads;
  ASSERT_EQ(reads.size(), 3u);
  EXPECT_EQ(reads[1].offset(), 200u);
  EXPECT_EQ(reads[2].rank(), 1u);
  EXPECT_EQ(reads[2].offset(), 200u);
}

TEST_F(JobTraceTest, SeveralStepsAreOneFile) {
  there(5, v1::JobTrace::RECORDED);
  there(6, v1::JobTrace::RECORDED);
  EXPECT_EQ(run("5", 2), kOk) << err.str();
  EXPECT_EQ(ranks_in_file(), 4u);
  EXPECT_THAT(out.str(), HasSubstr("1@6"));
}

TEST_F(JobTraceTest, RanksThatMissedItAreSaidAndTheRestIsGiven) {
  there(5, v1::JobTrace::MISSED, 1, 1).set_message("rank 1: it had begun when the wish came");
  EXPECT_EQ(run("5"), kOk) << err.str();
  EXPECT_THAT(err.str(), HasSubstr("warning: not all ranks recorded step 5; rank 1: it had begun"));
  EXPECT_EQ(ranks_in_file(), 1u);
}

TEST_F(JobTraceTest, ARefusalAndAJobThatEndsAreSaid) {
  coordinator.service.traces.answers = {{grpc::StatusCode::FAILED_PRECONDITION, "step 12 cannot be traced any more"}};
  EXPECT_EQ(run("12"), kRefused);
  EXPECT_THAT(err.str(), HasSubstr("error: step 12 cannot be traced any more"));
  coordinator.service.on_get = [&](v1::Job& job) {
    if (!job.traces().empty()) job.set_state(v1::Job::CANCELLED);
  };
  EXPECT_EQ(run("40"), kRefused);
  EXPECT_THAT(err.str(), HasSubstr("error: job abc ended (CANCELLED) at step 23; not all ranks recorded step 40"));
}

TEST_F(JobTraceTest, WhoLeavesIsToldHowToGoOn) {
  there(40, v1::JobTrace::WANTED, 0);
  coordinator.service.on_get = [&](v1::Job& job) {
    if (!coordinator.service.traces.asked.empty() || job.traces_size() > 1) interrupt.trigger();
  };
  EXPECT_EQ(run("40", 1), kOk);
  EXPECT_THAT(err.str(), HasSubstr("left; the ranks record it all the same: telar trace abc --step 40\n"));
  EXPECT_FALSE(fs::exists(to_));
}

}  // namespace
}  // namespace telar::client
