// Traces of steps: from the wish to the last rank's answer, and the files that come of it.
#include "server/jobs/traces.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/jobs/trace_file.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::tests {
namespace {

using server::jobs::TraceFile;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Traces : public ManagerTest {
 protected:
  absl::StatusOr<v1::Job> want(const std::string& name, uint64_t step, uint32_t steps = 1,
                               const std::string& request_id = "r") {
    v1::TraceJobRequest request;
    request.set_name(name);
    request.set_step(step);
    request.set_steps(steps);
    request.set_request_id(request_id);
    return manager_->trace(request);
  }
  // The steps that each rank of a node is told of, all alike.
  std::vector<uint64_t> told(const std::string& node, int ranks = 2) {
    const v1::HeartbeatResponse response = manager_->assignments(node);
    if (response.traces().empty()) return {};
    EXPECT_EQ(response.traces_size(), ranks);
    for (const v1::TraceWish& wish : response.traces()) {
      EXPECT_THAT(wish.steps(), testing::ElementsAreArray(response.traces(0).steps()));
    }
    return {response.traces(0).steps().begin(), response.traces(0).steps().end()};
  }
  // Rank `rank` answers. Its next line.
  void answer(const std::string& name, uint32_t rank, uint64_t step, bool recorded = true, uint64_t bytes = 10) {
    v1::ReportEventsRequest request;
    const v1::Job job = get(name);
    request.set_node(job.placement(static_cast<int>(rank)).node());
    request.set_job(name);
    request.set_epoch(job.epoch());
    request.set_rank(rank);
    request.set_first_line(lines_[{job.epoch(), rank}]++);
    v1::TraceReport& report = *request.add_events()->mutable_trace();
    report.set_step(step);
    report.set_state(recorded ? v1::TraceReport::RECORDED : v1::TraceReport::MISSED);
    report.set_bytes(bytes);
    if (!recorded) report.set_message("it had begun");
    last_ = request;
    ASSERT_TRUE(manager_->report_events(request).ok());
  }
  // Rank 0 tells of a step of 100 ms that is over now.
  void step(const std::string& name, uint64_t step) {
    const uint64_t line = lines_[{get(name).epoch(), 0}]++;
    v1::RankEvent event = step_event(step, 3);
    event.mutable_step()->set_seconds(0.1);
    event.mutable_time()->set_seconds(std::chrono::system_clock::to_time_t(clock_.wall()));
    ASSERT_TRUE(report(name, get(name).epoch(), line, {event}).ok());
  }
  v1::JobTrace only(const std::string& name) {
    const v1::Job job = get(name);
    EXPECT_EQ(job.traces_size(), 1);
    return job.traces(0);
  }

  std::map<std::pair<uint64_t, uint32_t>, uint64_t> lines_;
  v1::ReportEventsRequest last_;
};

TEST_F(Traces, EveryRankIsToldUntilAllHaveAnswered) {
  const std::string name = running();
  const uint64_t version = manager_->assignments_version("b");
  const auto asked = want(name, 40);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->traces(0).state(), v1::JobTrace::WANTED);
  EXPECT_GT(manager_->assignments_version("b"), version);  // At once.
  EXPECT_THAT(told("a"), ElementsAre(40));
  EXPECT_THAT(told("b"), ElementsAre(40));
  const size_t events = manager_->events(name, 0, 1000)->events.size();
  for (const uint32_t rank : {0u, 1u, 2u}) answer(name, rank, 40);
  EXPECT_THAT(told("b"), ElementsAre(40));
  EXPECT_EQ(only(name).recorded(), 3u);
  EXPECT_TRUE(manager_->report_events(last_).ok());  // Repeated, it counts once.
  EXPECT_EQ(only(name).recorded(), 3u);
  answer(name, 3, 40);
  EXPECT_EQ(only(name).state(), v1::JobTrace::RECORDED);
  EXPECT_EQ(only(name).bytes(), 40u);
  EXPECT_EQ(only(name).epoch(), 1u);
  EXPECT_THAT(told("a"), IsEmpty());
  EXPECT_EQ(manager_->events(name, 0, 1000)->events.size(), events);  // A thousand ranks would fill the history.
}

TEST_F(Traces, ARepeatedRequestAndARestartOfTheCoordinatorChangeNothing) {
  const std::string name = running();
  const auto first = want(name, 0, 2, "same");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->traces_size(), 2);
  step(name, 30);
  open();
  connect();
  EXPECT_THAT(told("a"), ElementsAre(first->traces(0).step(), first->traces(1).step()));
  const auto again = want(name, 0, 2, "same");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->SerializeAsString(), first->SerializeAsString());
  EXPECT_EQ(get(name).traces_size(), 2);
}

TEST_F(Traces, AStepThatIsPastOrTooNearIsRefusedWithTheNearest) {
  const std::string name = running();
  step(name, 10);
  step(name, 20);
  const auto past = want(name, 15);
  EXPECT_EQ(past.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reason(past.status()), "STEP_PAST");
  EXPECT_EQ(metadata(past.status())["at"], "20");
  EXPECT_EQ(metadata(past.status())["nearest"], "33");  // Two in flight, and a second's worth.
  EXPECT_EQ(reason(want(name, 32).status()), "STEP_PAST");
  EXPECT_TRUE(want(name, 33).ok());
  clock_.advance(milliseconds(2000));  // Twenty steps later, though nobody has told of them.
  EXPECT_EQ(metadata(want(name, 34, 1, "x").status())["nearest"], "53");
  EXPECT_EQ(want(name, 0, 1, "n")->traces(1).step(), 53u);
  EXPECT_TRUE(want(name, 33, 1, "y").ok());  // It is wanted already.
  clock_.advance(milliseconds(6000));
  EXPECT_EQ(reason(want(name, 0, 1, "m").status()), "JOB_ENDING");
}

TEST_F(Traces, WhatCannotBeIsRefused) {
  const std::string name = running();
  EXPECT_EQ(want(name, 101).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(want(name, 99, 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(want(name, 50, 17).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(want("projects/default/jobs/none", 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(want(name, 50, 16).ok());
  EXPECT_EQ(reason(want(name, 70, 1, "s").status()), "TOO_MANY_TRACES");
  EXPECT_TRUE(want(name, 50, 16, "t").ok());  // They are there.
  ASSERT_TRUE(cancel(name).ok());
  EXPECT_EQ(reason(want(name, 80, 1, "u").status()), "JOB_TERMINAL");
}

TEST_F(Traces, ARankThatMissedItIsNamed) {
  const std::string name = running();
  ASSERT_TRUE(want(name, 40).ok());
  for (const uint32_t rank : {0u, 1u, 3u}) answer(name, rank, 40);
  answer(name, 2, 40, false);
  EXPECT_EQ(only(name).state(), v1::JobTrace::MISSED);
  EXPECT_EQ(only(name).recorded(), 3u);
  EXPECT_EQ(only(name).message(), "rank 2: it had begun");
  EXPECT_THAT(told("a"), IsEmpty());
  EXPECT_EQ(want(name, 40, 1, "again")->traces(0).state(), v1::JobTrace::WANTED);  // It has not been there yet.
}

TEST_F(Traces, TheNextEpochIsToldWhatTheOneBeforeDidNotGetTo) {
  v1::JobSpec spec = small_spec(4);
  spec.mutable_restart()->set_max_restarts(3);
  const std::string name = running(spec);
  ASSERT_TRUE(want(name, 40).ok());
  answer(name, 0, 40);
  FakeWorker::die(a_.rank(name, 1, 1), 139, v1::CRASH, "killed by signal 11");
  run();
  pass(seconds(40));
  run();
  ASSERT_EQ(state(name), "RUNNING");
  ASSERT_EQ(get(name).epoch(), 2u);
  EXPECT_THAT(told("a"), ElementsAre(40));
  for (const uint32_t rank : {0u, 1u, 2u, 3u}) answer(name, rank, 40);
  EXPECT_EQ(only(name).state(), v1::JobTrace::RECORDED);
  EXPECT_EQ(only(name).recorded(), 4u);
  EXPECT_EQ(only(name).epoch(), 2u);
}

TEST_F(Traces, WhatTheSpecNamesIsKnownOnceRanksTellOfIt) {
  const std::string name = running(small_spec(1));
  std::vector<v1::RankEvent> events(70);
  for (size_t i = 0; i < events.size(); ++i) {
    events[i].mutable_trace()->set_step(i + 1);
    events[i].mutable_trace()->set_state(v1::TraceReport::RECORDED);
  }
  ASSERT_TRUE(report(name, 1, 0, events).ok());
  const v1::Job job = get(name);
  ASSERT_EQ(job.traces_size(), server::jobs::kMostTraces);
  EXPECT_EQ(job.traces(0).step(), 7u);  // The oldest go.
  EXPECT_EQ(job.traces(63).state(), v1::JobTrace::RECORDED);
}

class TraceFileTest : public testing::Test {
 protected:
  TraceFileTest() { std::filesystem::create_directories(folder()); }
  std::string folder() const { return scratch_.path("run/traces/rank-3"); }
  absl::StatusOr<TraceFile> open(uint32_t rank = 3) { return TraceFile::open(scratch_.path("run"), rank, 12); }
  Scratch scratch_;
};

TEST_F(TraceFileTest, IsReadInPieces) {
  std::ofstream(folder() + "/trace-12.json") << "0123456789";
  const auto file = open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 10u);
  EXPECT_EQ(file->read(0, 4).value(), "0123");
  EXPECT_EQ(file->read(8, 4).value(), "89");
  EXPECT_EQ(file->read(10, 4).value(), "");
  EXPECT_EQ(file->read(99, 4).value(), "");
  const auto none = open(4);
  EXPECT_EQ(reason(none.status()), "TRACE_NOT_FOUND");
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("run/traces/rank-4/trace-12.json"));
  std::filesystem::resize_file(folder() + "/trace-12.json", 3);
  EXPECT_EQ(file->read(2, 4).status().code(), absl::StatusCode::kUnavailable);
}

// What a job writes there must not show the coordinator's other files.
TEST_F(TraceFileTest, LinksAndOtherThingsAreRefused) {
  std::ofstream(scratch_.path("secret")) << "secret";
  std::filesystem::create_symlink(scratch_.path("secret"), folder() + "/trace-12.json");
  EXPECT_FALSE(open().ok());
  std::filesystem::create_directories(scratch_.path("elsewhere"));
  std::ofstream(scratch_.path("elsewhere/trace-12.json")) << "secret";
  std::filesystem::create_directory_symlink(scratch_.path("elsewhere"), scratch_.path("run/traces/rank-4"));
  EXPECT_FALSE(open(4).ok());
  std::filesystem::create_directories(scratch_.path("run/traces/rank-5/trace-12.json"));
  EXPECT_EQ(reason(open(5).status()), "TRACE_UNREADABLE");
  std::filesystem::create_directories(scratch_.path("run/traces/rank-6"));
  ASSERT_EQ(mkfifo(scratch_.path("run/traces/rank-6/trace-12.json").c_str(), 0600), 0);
  EXPECT_EQ(reason(open(6).status()), "TRACE_UNREADABLE");  // And nobody waits for a writer.
}

}  // namespace
}  // namespace telar::tests
