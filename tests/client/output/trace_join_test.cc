// Ranks of several nodes on one clock, and the arrows between them: on gangs whose true times are known.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/output/trace.h"
#include "tests/client/output/trace_check.h"

namespace telar::client {
namespace {

using nlohmann::ordered_json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TraceCheck;

constexpr int kMicroBatches = 4;

// What the clocks of a gang do, in seconds.
struct Clocks {
  double shift = 3;       // Nodes' clocks differ from the true time by up to that, either way.
  double error = 0.002;   // What comparisons say they may be off by, at most.
  double worse = 0;       // How much further than that they are off.
  double wall_error = 0;  // How far walls' clocks are off.
  bool compared = true;
};

// A pipeline of one rank a stage, two ranks a node; each runs kMicroBatches forward and back, and all meet before and
// behind that. Every receive waits for its message, so that its end is true by the sender's time.
class Gang {
 public:
  Gang(uint64_t seed, int ranks, Clocks clocks) : random_(seed), ranks_(ranks), clocks_(clocks) {
    for (int node = 0; node < (ranks + 1) / 2; ++node) {
      Node one;
      one.shift = between(-clocks.shift, clocks.shift);
      one.error = between(0.1, 1) * clocks.error;
      one.measured = -one.shift + between(-1, 1) * one.error + (node % 2 == 1 ? clocks.worse : 0);
      one.wall_error = between(-1, 1) * clocks.wall_error;
      nodes_.push_back(one);
    }
    for (int rank = 0; rank < ranks; ++rank) traces_.emplace_back();
    at_.assign(static_cast<size_t>(ranks), 100.0);
    for (double& at : at_) at += between(0, 0.001);
    for (int rank = 0; rank < ranks; ++rank) began_.push_back(at_[static_cast<size_t>(rank)]);
    meet("valid.reduce");
    for (int batch = 0; batch < kMicroBatches; ++batch) pass(batch, 1, "forward");
    for (int batch = 0; batch < kMicroBatches; ++batch) pass(batch, -1, "backward");
    meet("loss.reduce");
  }

  std::string file(int rank) {
    const Node& node = node_of(rank);
    const double began = began_[static_cast<size_t>(rank)];
    ordered_json told = {{"rank", rank}, {"step", 7}, {"epoch", 2}, {"world", ranks_},
                         {"pp", rank},   {"dp", 0},   {"tp", 0}};
    for (const char* figure : {"seconds", "compute", "communication", "exposed", "wait", "idle"}) told[figure] = 0.1;
    told["start"] = began + node.wall_error;
    told["lanes"] = ordered_json::array();
    told["clock"] = {{"node", rank / 2 * 2},
                     {"monotonic", 50.0},
                     {"wall", 50.0 - node.shift + node.wall_error},
                     {"start", began + node.shift},
                     {"start_error", 1e-7}};
    if (clocks_.compared) {
      told["clock"]["reference"] = "coordinator";
      told["clock"]["offset"] = node.measured;
      told["clock"]["offset_error"] = node.error;
    }
    ordered_json events = ordered_json::array();
    const auto name = [&](const char* what, int lane, ordered_json args) {
      events.push_back({{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", std::move(args)}});
    };
    name("process_name", 0, {{"name", absl::StrCat("rank ", rank)}});
    name("process_sort_index", 0, {{"sort_index", rank}});
    for (size_t lane = 0; lane < lanes(rank).size(); ++lane) {
      name("thread_name", static_cast<int>(lane), {{"name", lanes(rank)[lane]}});
      name("thread_sort_index", static_cast<int>(lane), {{"sort_index", lane}});
    }
    for (const ordered_json& event : traces_[static_cast<size_t>(rank)]) events.push_back(event);
    return ordered_json({{"telar", told}, {"traceEvents", events}}).dump();
  }

  // To be added to the rank's clock to have rank 0's.
  double offset(int rank) { return node_of(0).shift - node_of(rank).shift; }
  double measured_error(int rank) { return rank / 2 == 0 ? 1e-7 : node_of(rank).error + node_of(0).error + 1e-7; }
  size_t messages() const { return static_cast<size_t>(2 * kMicroBatches * (ranks_ - 1)); }
  size_t hops() const { return static_cast<size_t>(kMicroBatches * (ranks_ - 1)); }

 private:
  struct Node {
    double shift = 0, error = 0, measured = 0, wall_error = 0;
  };
  double between(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  Node& node_of(int rank) { return nodes_[static_cast<size_t>(rank / 2)]; }
  double& at(int rank) { return at_[static_cast<size_t>(rank)]; }

  std::vector<std::string> lanes(int rank) const {
    std::vector<std::string> all = {"compute", "world.0"};
    for (const auto& [from, to] : {std::pair(rank - 1, rank), {rank, rank - 1}, {rank, rank + 1}, {rank + 1, rank}}) {
      if (std::min(from, to) >= 0 && std::max(from, to) < ranks_) all.push_back(flow(from, to));
    }
    return all;
  }
  static std::string flow(int from, int to) { return absl::StrCat("flow.", from, "-", to); }
  void add(int rank, const std::string& lane, const std::string& name, const char* phase, double start, double stop,
           ordered_json args) {
    const std::vector<std::string> all = lanes(rank);
    const auto found = std::find(all.begin(), all.end(), lane);
    args["bytes"] = 64.0;
    traces_[static_cast<size_t>(rank)].push_back({{"name", name},
                                                  {"cat", phase},
                                                  {"ph", "X"},
                                                  {"ts", 1e6 * (start - began_[static_cast<size_t>(rank)])},
                                                  {"dur", 1e6 * (stop - start)},
                                                  {"pid", rank},
                                                  {"tid", found - all.begin()},
                                                  {"args", std::move(args)}});
  }

  void meet(const std::string& name) {
    const double begun = *std::max_element(at_.begin(), at_.end());
    for (int rank = 0; rank < ranks_; ++rank) {
      const double end = begun + between(0.00001, 0.0002);
      add(rank, "world.0", name, "other", at(rank), end, {{"comm", "all_reduce"}, {"met", met_}});
      at(rank) = end;
    }
    ++met_;
  }

  // A micro-batch from one end of the pipeline to the other.
  void pass(int batch, int way, const char* phase) {
    double sent = 0;
    for (int i = 0; i < ranks_; ++i) {
      const int rank = way > 0 ? i : ranks_ - 1 - i, before = rank - way, behind = rank + way;
      const ordered_json about = {{"stage", rank}, {"micro_batch", batch}};
      if (i > 0) {
        const double end = std::max(at(rank) + 0.00001, sent + between(0.00002, 0.0003));
        ordered_json args = about;
        args.update({{"comm", "recv"}, {"from", before}, {"received", batch}});
        add(rank, flow(before, rank), "recv", "pipeline_comm", at(rank), end, args);
        at(rank) = end;
      }
      const double end = at(rank) + between(0.0005, 0.001);
      add(rank, "compute", absl::StrCat("s", rank, ".mb", batch, "/linear"), phase, at(rank), end, about);
      at(rank) = end;
      if (i + 1 == ranks_) return;
      sent = at(rank);
      at(rank) += between(0.00001, 0.0001);
      ordered_json args = about;
      args.update({{"comm", "send"}, {"to", behind}, {"sent", batch}});
      add(rank, flow(rank, behind), "send", "pipeline_comm", sent, at(rank), args);
    }
  }

  std::mt19937_64 random_;
  const int ranks_;
  const Clocks clocks_;
  std::vector<Node> nodes_;
  std::vector<std::vector<ordered_json>> traces_;  // By rank.
  std::vector<double> at_, began_;                 // True times.
  uint64_t met_ = 0;
};

struct Joined {
  Joined(Gang& gang, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) traces.push_back(read_rank_trace("file", gang.file(rank), names).value());
    links = find_links(traces, names);
    clocks = align_clocks(traces, links);
    flows = find_flows(traces, names, links, clocks);
  }
  size_t flows_of(const std::string& category) const {
    return static_cast<size_t>(std::count_if(flows.flows.begin(), flows.flows.end(),
                                             [&](const TraceFlow& one) { return one.category == category; }));
  }
  TraceNames names;
  std::vector<RankTrace> traces;
  TraceLinks links;
  TraceClocks clocks;
  TraceFlows flows;
};

std::string text_of(const TraceSet& traces) {
  std::ostringstream out;
  traces.write(out);
  return out.str();
}

class TraceJoinTest : public ::testing::TestWithParam<int> {};

TEST_P(TraceJoinTest, OffsetsAreWithinTheirBoundsAndCauseAndEffectNarrowThem) {
  double refined = 0, measured = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Gang gang(seed, GetParam(), {});
    const Joined joined(gang, GetParam());
    EXPECT_EQ(joined.clocks.basis, TraceClocks::Basis::kRoundTrips);
    ASSERT_TRUE(joined.clocks.consistent) << seed;
    for (int rank = 0; rank < GetParam(); ++rank) {
      const auto i = static_cast<size_t>(rank);
      EXPECT_NEAR(joined.clocks.offset[i], gang.offset(rank), joined.clocks.error[i] + 1e-9) << seed << " " << rank;
      EXPECT_LE(joined.clocks.error[i], gang.measured_error(rank) + 1e-9) << seed << " " << rank;
      refined += joined.clocks.error[i];
      measured += gang.measured_error(rank);
    }
    EXPECT_EQ(joined.flows.left_out, 0u) << seed;
    EXPECT_EQ(joined.links.single, 0u);
    EXPECT_EQ(joined.flows_of("message"), gang.messages());
    EXPECT_EQ(joined.flows_of("collective"), 2u);
    EXPECT_EQ(joined.flows_of("micro-batch"), gang.hops());
  }
  EXPECT_LT(refined, 0.5 * measured);  // Messages take a tenth of what round trips leave open.
}

TEST_P(TraceJoinTest, WithoutComparisonsNoEffectComesBeforeItsCause) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Gang gang(seed, GetParam(), {.wall_error = 0.004, .compared = false});
    const Joined joined(gang, GetParam());
    EXPECT_EQ(joined.clocks.basis, TraceClocks::Basis::kWallClocks);
    EXPECT_TRUE(joined.clocks.consistent);
    EXPECT_EQ(joined.flows.left_out, 0u) << seed;
    EXPECT_EQ(joined.flows_of("message"), gang.messages());
    EXPECT_LT(joined.clocks.error[0], 0);  // Nobody knows.
  }
}

TEST_P(TraceJoinTest, TheFileIsOneThatPerfettoDraws) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Gang gang(seed, GetParam(), {});
    TraceSet traces;
    for (int rank = 0; rank < GetParam(); ++rank) ASSERT_TRUE(traces.add(absl::StrCat(rank), gang.file(rank)).ok());
    ASSERT_TRUE(traces.join().ok());
    const auto json = nlohmann::json::parse(text_of(traces));
    EXPECT_THAT(TraceCheck::faults_of(json), IsEmpty()) << seed;
    EXPECT_EQ(json["otherData"]["clocks"], "round trips");
    EXPECT_EQ(json["otherData"]["arrows_left_out"], 0);
    EXPECT_EQ(json["telar"].size(), static_cast<size_t>(GetParam()));
    EXPECT_GT(json["telar"].back()["clock"]["to_first_error"].get<double>(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Gangs, TraceJoinTest, ::testing::Values(3, 4, 8));

TEST(TraceJoinTest, RanksOfOneNodeNeedNoComparison) {
  Gang gang(3, 2, {.compared = false});
  const Joined joined(gang, 2);
  EXPECT_EQ(joined.clocks.basis, TraceClocks::Basis::kOneNode);
  EXPECT_NEAR(joined.clocks.offset[1], 0, 1e-6);
  EXPECT_LT(joined.clocks.error[1], 1e-6);
  EXPECT_EQ(joined.flows.left_out, 0u);
}

TEST(TraceJoinTest, ComparisonsThatCannotBeTrueAreSaidAndNotBent) {
  Gang gang(3, 4, {.error = 1e-5, .worse = 0.05});
  const Joined joined(gang, 4);
  EXPECT_FALSE(joined.clocks.consistent);
  EXPECT_NEAR(joined.clocks.offset[2], gang.offset(2) + 0.05, 1e-4);
  EXPECT_GT(joined.flows.left_out, 0u);
}

TEST(TraceJoinTest, EndsWhoseOtherEndIsMissingHaveNoArrow) {
  Gang gang(3, 4, {});
  TraceSet traces;
  for (const int rank : {0, 1, 3}) ASSERT_TRUE(traces.add(absl::StrCat(rank), gang.file(rank)).ok());
  ASSERT_TRUE(traces.join().ok());
  const auto json = nlohmann::json::parse(text_of(traces));
  EXPECT_THAT(TraceCheck::faults_of(json), IsEmpty());
  EXPECT_EQ(json["otherData"]["single_ends"], 4 * kMicroBatches);
}

// The root's begin is the only cause: others may have ended before a third began.
TEST(TraceJoinTest, ABroadcastBindsItsMembersToTheRootAlone) {
  TraceNames names;
  std::vector<RankTrace> traces(3);
  for (int rank = 0; rank < 3; ++rank) {
    RankTrace& trace = traces[static_cast<size_t>(rank)];
    trace.rank = rank;
    trace.clock = {.node = rank, .start = 10, .reference = "c", .offset_error = 0.4};
    const int64_t begin = int64_t{1'000'000'000} * rank;
    trace.slices.push_back(
        {.comm = names.id("broadcast"), .start = begin, .stop = begin + 500'000'000, .root = 0, .met = 0});
  }
  const TraceLinks links = find_links(traces, names);
  ASSERT_EQ(links.meetings.size(), 1u);
  const TraceClocks clocks = align_clocks(traces, links);
  EXPECT_TRUE(clocks.consistent);
  EXPECT_NEAR(clocks.offset[1], 0, 1e-9);
  EXPECT_NEAR(clocks.offset[2], 0, 1e-9);
}

TEST(TraceJoinTest, TheCheckSeesWhatIsWrong) {
  Gang gang(5, 4, {});
  TraceSet traces;
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(traces.add(absl::StrCat(rank), gang.file(rank)).ok());
  ASSERT_TRUE(traces.join().ok());
  const auto good = nlohmann::json::parse(text_of(traces));
  const auto spoil = [&](const std::string& kind, const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json bad = good;
    for (nlohmann::json& event : bad["traceEvents"]) {
      if (event["ph"] != kind) continue;
      change(event);
      break;
    }
    return TraceCheck::faults_of(bad);
  };
  EXPECT_THAT(spoil("f", [](nlohmann::json& e) { e["id"] = 99999; }), Contains(HasSubstr("has one end")));
  EXPECT_THAT(spoil("f", [](nlohmann::json& e) { e["ts"] = 0.001; }), Contains(HasSubstr("goes back in time")));
  EXPECT_THAT(spoil("s", [](nlohmann::json& e) { e["tid"] = 77; }), Contains(HasSubstr("end in no slice")));
  EXPECT_THAT(spoil("f", [](nlohmann::json& e) { e.erase("bp"); }), Contains(HasSubstr("at the next slice")));
  EXPECT_THAT(spoil("X", [](nlohmann::json& e) { e["dur"] = 1e9; }), Contains(HasSubstr("slices overlap")));
  EXPECT_THAT(spoil("M", [](nlohmann::json& e) { e["name"] = "other"; }), Contains(HasSubstr("is missing")));
  EXPECT_THAT(spoil("s", [](nlohmann::json& e) { e["id"] = 2; }), Not(IsEmpty()));
}

TEST(TraceJoinTest, TracesOfTwoEpochsAreNoRun) {
  Gang gang(5, 2, {});
  nlohmann::json other = nlohmann::json::parse(gang.file(1));
  other["telar"]["epoch"] = 3;
  TraceSet traces;
  ASSERT_TRUE(traces.add("a", gang.file(0)).ok());
  ASSERT_TRUE(traces.add("b", other.dump()).ok());
  EXPECT_EQ(traces.join().message(), "a is of epoch 2, b of epoch 3: they are no traces of one run");
  TraceSet one;
  one.only_epoch(3);
  ASSERT_TRUE(one.add("a", gang.file(0)).ok());
  ASSERT_TRUE(one.add("b", other.dump()).ok());
  EXPECT_TRUE(one.join().ok());
  EXPECT_THAT(one.line(), HasSubstr("1 rank"));
}

}  // namespace
}  // namespace telar::client
