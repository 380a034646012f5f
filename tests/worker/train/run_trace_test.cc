// Traces of gangs that run in this process: what their files say, and what becomes of them together.
#include "client/output/trace.h"
#include "tests/client/output/trace_check.h"
#include "tests/worker/train/run_fixture.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using client::testing::TraceCheck;
using ::testing::IsEmpty;
using testing::read;
using testing::RunTest;

// A host whose clock is not that of the others.
class ShiftedClock final : public Clock {
 public:
  explicit ShiftedClock(std::chrono::milliseconds by) : by_(by) {}
  Steady now() const override { return std::chrono::steady_clock::now() + by_; }
  Wall wall() const override { return std::chrono::system_clock::now() + by_; }

 private:
  const std::chrono::milliseconds by_;
};

class RunTraceTest : public RunTest {
 protected:
  // Runs a gang of `ranks` ranks, two a node, whose nodes' clocks differ by 7 s.
  void run_gang(const v1::RankPlan& made, uint32_t ranks) {
    const auto run_one = [&](uint32_t rank) {
      const fs::path folder = root_ / "ranks" / std::to_string(rank);
      fs::create_directories(folder);
      v1::RankPlan own = made;
      own.set_rank(rank);
      own.clear_node_ranks();
      for (uint32_t i = 0; i < 2; ++i) own.add_node_ranks(rank / 2 * 2 + i);
      const ShiftedClock clock(std::chrono::seconds(rank / 2 * 7));
      auto events = EventLog::open((folder / "events.jsonl").string()).value();
      RunSeams seams;
      seams.trace.clock = &clock;
      const auto outcome = run(own, *events, kGoOn, Replica::Execution::kLanes, seams);
      EXPECT_TRUE(outcome.ok()) << outcome.status();
    };
    std::vector<std::thread> others;
    for (uint32_t rank = 1; rank < ranks; ++rank) others.emplace_back(run_one, rank);
    run_one(0);
    for (std::thread& other : others) other.join();
  }
  v1::RankPlan gang(const std::string& run_dir, uint32_t data, uint32_t pipeline,
                    const fakes::FakeRendezvous& rendezvous) {
    v1::RankPlan made = plan(run_dir, 6);
    made.set_world_size(data * pipeline);
    made.set_listen_host("127.0.0.1");
    made.set_rendezvous_address(rendezvous.address());
    v1::JobSpec& spec = *made.mutable_spec();
    spec.mutable_batch()->set_global(8);
    spec.mutable_resources()->set_devices(data * pipeline);
    spec.mutable_parallel()->set_data(data);
    spec.mutable_parallel()->set_pipeline(pipeline);
    EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
    return made;
  }
  std::string trace_path(const std::string& run_dir, uint32_t rank) const {
    return (root_ / run_dir / "traces" / ("rank-" + std::to_string(rank)) / "trace-5.json").string();
  }
};

TEST_F(RunTraceTest, ATracedStepChangesNothing) {
  for (const std::string run_dir : {"plain", "traced"}) {
    fakes::FakeRendezvous rendezvous;
    v1::RankPlan made = gang(run_dir, 2, 1, rendezvous);
    if (run_dir == "traced") made.mutable_spec()->mutable_trace()->add_steps(5);
    run_gang(made, 2);
  }
  EXPECT_EQ(losses("traced"), losses("plain"));
  EXPECT_FALSE(fs::exists(root_ / "plain" / "traces"));
  for (const uint32_t rank : {0u, 1u}) {
    const auto told = nlohmann::json::parse(read(trace_path("traced", rank)))["telar"];
    EXPECT_EQ(told["rank"], rank);
    EXPECT_EQ(told["step"], 5);
    EXPECT_EQ(told["dp"], rank);
    EXPECT_EQ(told["lanes"][1]["name"], "world.0");
    EXPECT_GT(told["lanes"][1]["busy"].get<double>(), 0);
    EXPECT_GT(told["compute"].get<double>(), 0);
    EXPECT_LE(told["exposed"].get<double>(), told["communication"].get<double>());
  }
  EXPECT_THAT(read(root_ / "ranks/1/events.jsonl"),
              ::testing::HasSubstr("\"trace\":{\"step\":\"5\",\"state\":\"RECORDED\""));
}

TEST_F(RunTraceTest, FourRanksOfTwoNodesWithOtherClocksAreOnOne) {
  fakes::FakeRendezvous rendezvous;
  v1::RankPlan made = gang("run", 2, 2, rendezvous);
  made.mutable_spec()->mutable_trace()->add_steps(5);
  run_gang(made, 4);
  client::TraceSet traces;
  uint64_t sends = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const std::string content = read(trace_path("run", rank));
    ASSERT_TRUE(traces.add("rank", content).ok());
    const auto json = nlohmann::json::parse(content);
    for (const auto& event : json["traceEvents"]) {
      if (event["ph"] == "X" && event["args"].value("comm", "") == "send") ++sends;
    }
  }
  ASSERT_TRUE(traces.join().ok());
  std::ostringstream out;
  traces.write(out);
  const auto joined = nlohmann::json::parse(out.str());
  EXPECT_THAT(TraceCheck::faults_of(joined), IsEmpty());
  EXPECT_EQ(joined["otherData"]["clocks"], "round trips");
  EXPECT_EQ(joined["otherData"]["consistent"], true);
  EXPECT_EQ(joined["otherData"]["arrows_left_out"], 0);
  EXPECT_EQ(joined["otherData"]["single_ends"], 0);
  uint64_t messages = 0, hops = 0;
  for (const auto& event : joined["traceEvents"]) {
    if (event["ph"] == "s") (event["cat"] == "message" ? messages : hops) += event["cat"] == "collective" ? 0 : 1;
  }
  EXPECT_EQ(sends, 8u);  // Two replicas, two micro-batches, there and back.
  EXPECT_EQ(messages, sends);
  EXPECT_EQ(hops, 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& clock = joined["telar"][static_cast<size_t>(rank)]["clock"];
    const double error = clock["to_first_error"].get<double>();
    EXPECT_NEAR(clock["to_first"].get<double>(), rank < 2 ? 0 : -7, error + 1e-9) << rank;
    EXPECT_LT(error, 0.1);
  }
}

}  // namespace
}  // namespace telar::train
