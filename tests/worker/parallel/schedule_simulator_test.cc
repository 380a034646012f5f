#include "worker/parallel/schedule_simulator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/parallel/schedule_passes.h"

namespace telar::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kEps = 1e-9;

// `whole` are the times of all of a rank's layers, of which each of its stages has its share.
ScheduleCosts costs_of(const Schedule& schedule, StageCost whole, double link = 0) {
  const double share = static_cast<double>(schedule.ranks) / schedule.stages;
  ScheduleCosts costs;
  costs.stages.assign(schedule.stages, {whole.forward * share, whole.input_grad * share, whole.weight_grad * share});
  costs.latency = link;
  return costs;
}

ScheduleForecast forecast(const std::string& name, int p, int v, int m, StageCost whole = {1, 1, 1}, double link = 0) {
  const absl::StatusOr<Schedule> schedule = make_schedule(name, p, v, m);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const absl::StatusOr<ScheduleForecast> result = simulate(*schedule, costs_of(*schedule, whole, link));
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

template <typename T>
std::vector<T> each(const ScheduleForecast& forecast, T RankForecast::*field) {
  std::vector<T> values;
  for (const RankForecast& rank : forecast.ranks) values.push_back(rank.*field);
  return values;
}

TEST(Simulator, KnownFiguresOfFourRanks) {
  const ScheduleForecast plain = forecast("1f1b", 4, 1, 8);
  EXPECT_NEAR(plain.makespan, 33, kEps);
  EXPECT_NEAR(plain.bubble_fraction, 3.0 / 11, kEps);
  for (const double idle : each(plain, &RankForecast::idle)) EXPECT_NEAR(idle, 9, kEps);
  EXPECT_THAT(each(plain, &RankForecast::peak_until_weight_grad), ElementsAre(4, 3, 2, 1));

  const ScheduleForecast interleaved = forecast("interleaved", 4, 2, 8);
  EXPECT_NEAR(interleaved.makespan, 28.5, kEps);
  for (const double idle : each(interleaved, &RankForecast::idle)) EXPECT_NEAR(idle, 4.5, kEps);
  EXPECT_THAT(each(interleaved, &RankForecast::peak_until_weight_grad), ElementsAre(11, 9, 7, 5));

  const ScheduleForecast h1 = forecast("zb-h1", 4, 1, 8);
  EXPECT_NEAR(h1.makespan, 27, kEps);
  const std::vector<double> own = each(h1, &RankForecast::own_idle);
  for (int r = 0; r < 4; ++r) EXPECT_NEAR(own[r], 3 - r, kEps);
  EXPECT_THAT(each(h1, &RankForecast::peak_until_weight_grad), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(each(h1, &RankForecast::peak_until_input_grad), ElementsAre(4, 3, 2, 1));

  const ScheduleForecast v = forecast("zb-v", 4, 2, 8);
  EXPECT_NEAR(v.makespan, 25.5, kEps);
  for (const double idle : each(v, &RankForecast::own_idle)) EXPECT_NEAR(idle, 0, kEps);
  EXPECT_THAT(each(v, &RankForecast::peak_until_weight_grad), ElementsAre(8, 8, 8, 8));
}

// One in-order queue a pair of ranks; a transfer takes 0.2 of a rank's forward.
TEST(Simulator, KnownFiguresWithLinks) {
  EXPECT_NEAR(forecast("1f1b", 4, 1, 8, {1, 1, 1}, 0.2).makespan, 36.6, kEps);
  EXPECT_NEAR(forecast("interleaved", 4, 2, 8, {1, 1, 1}, 0.2).makespan, 31.3, kEps);
  EXPECT_NEAR(forecast("interleaved", 8, 2, 32).makespan, 106.5, kEps);
  EXPECT_NEAR(forecast("interleaved", 8, 2, 32, {1, 1, 1}, 0.2).makespan, 112.5, kEps);
  EXPECT_NEAR(forecast("zb-v", 4, 2, 8, {1, 1, 1}, 0.2).makespan, 28.1, kEps);
}

TEST(Simulator, UnequalPartsSpoilZeroBubbles) {
  EXPECT_NEAR(forecast("zb-h1", 4, 1, 16).ranks[0].own_idle, 3.0, kEps);
  EXPECT_NEAR(forecast("zb-h1", 4, 1, 16, {1, 1.3, 0.7}).ranks[0].own_idle, 4.8, kEps);
  const ScheduleForecast v = forecast("zb-v", 4, 2, 16, {1, 1.3, 0.7});
  EXPECT_NEAR(std::ranges::max(each(v, &RankForecast::own_idle)), 1.8, kEps);
}

const std::vector<StageCost> kMixes = {{1, 1, 1}, {1, 1.3, 0.7}, {2, 2.5, 1.5}, {1, 0.9, 0.4}};

template <typename Check>
void for_all_sizes(Check check) {
  for (const int p : {2, 3, 4, 6, 8}) {
    for (int m = p; m <= 4 * p; ++m) {
      for (const StageCost& cost : kMixes) {
        SCOPED_TRACE(
            absl::StrCat("p ", p, " m ", m, " F ", cost.forward, " I ", cost.input_grad, " W ", cost.weight_grad));
        check(p, m, cost);
      }
    }
  }
}

TEST(SimulatorFormulas, GPipe) {
  for_all_sizes([](int p, int m, StageCost c) {
    for (const int v : {1, 2, 3}) {
      const ScheduleForecast result = forecast("gpipe", p, v, m, c);
      for (const RankForecast& rank : result.ranks) {
        EXPECT_NEAR(rank.idle, (p - 1) * (c.forward + c.input_grad + c.weight_grad) / v, kEps);
        EXPECT_EQ(rank.peak_until_weight_grad, m * v);
      }
    }
  });
}

TEST(SimulatorFormulas, OneFOneB) {
  for_all_sizes([](int p, int m, StageCost c) {
    const ScheduleForecast result = forecast("1f1b", p, 1, m, c);
    EXPECT_NEAR(result.bubble_fraction, (p - 1.0) / (m + p - 1.0), kEps);
    for (int r = 0; r < p; ++r) {
      EXPECT_NEAR(result.ranks[r].idle, (p - 1) * (c.forward + c.input_grad + c.weight_grad), kEps);
      EXPECT_EQ(result.ranks[r].peak_until_weight_grad, std::min(m, p - r));
    }
  });
}

TEST(SimulatorFormulas, Interleaved) {
  for_all_sizes([](int p, int m, StageCost c) {
    for (const int v : {2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat("v ", v));
      const ScheduleForecast result = forecast("interleaved", p, v, m, c);
      const int group = interleaved_group(p, m);
      for (int r = 0; r < p; ++r) {
        EXPECT_NEAR(result.ranks[r].idle, (p - 1) * (c.forward + c.input_grad + c.weight_grad) / v, kEps);
        EXPECT_EQ(result.ranks[r].peak_until_weight_grad, std::min(m * v, (v - 1) * group + 2 * (p - 1 - r) + 1));
      }
    }
  });
}

TEST(SimulatorFormulas, ZeroBubbleH1) {
  for_all_sizes([](int p, int m, StageCost c) {
    const ScheduleForecast result = forecast("zb-h1", p, 1, m, c);
    EXPECT_NEAR(result.ranks[0].own_idle, (p - 1) * (c.forward + c.input_grad - c.weight_grad), kEps);
    for (int r = 0; r < p; ++r) {
      EXPECT_EQ(result.ranks[r].peak_until_weight_grad, std::min(m, p));
      EXPECT_EQ(result.ranks[r].peak_until_input_grad, std::min(m, p - r));
    }
  });
}

TEST(SimulatorFormulas, PeaksOfPipelinesThatAreNotFull) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m < p; ++m) {
      SCOPED_TRACE(absl::StrCat("p ", p, " m ", m));
      const ScheduleForecast gpipe = forecast("gpipe", p, 2, m);
      const ScheduleForecast plain = forecast("1f1b", p, 1, m);
      const ScheduleForecast interleaved = forecast("interleaved", p, 3, m);
      const ScheduleForecast h1 = forecast("zb-h1", p, 1, m);
      const ScheduleForecast v = forecast("zb-v", p, 2, m);
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(gpipe.ranks[r].peak_until_weight_grad, 2 * m);
        EXPECT_EQ(plain.ranks[r].peak_until_weight_grad, std::min(m, p - r));
        EXPECT_EQ(interleaved.ranks[r].peak_until_weight_grad, std::min(m * 3, 2 * m + 2 * (p - 1 - r) + 1));
        EXPECT_EQ(h1.ranks[r].peak_until_weight_grad, m);
        EXPECT_EQ(h1.ranks[r].peak_until_input_grad, std::min(m, p - r));
        EXPECT_LE(v.ranks[r].peak_until_weight_grad, std::min(2 * p, 2 * m));
      }
    }
  }
}

TEST(SimulatorFormulas, ZeroBubbleV) {
  for_all_sizes([](int p, int m, StageCost c) {
    const ScheduleForecast result = forecast("zb-v", p, 2, m, c);
    for (const RankForecast& rank : result.ranks) EXPECT_LE(rank.peak_until_weight_grad, 2 * p);
    if (m < 2 * p - 1 || c.forward != c.input_grad || c.forward != c.weight_grad) return;
    EXPECT_NEAR(result.makespan, 3 * m * c.forward + (p - 1) * c.forward / 2, kEps);
    for (const RankForecast& rank : result.ranks) {
      EXPECT_NEAR(rank.own_idle, 0, kEps);
      EXPECT_EQ(rank.peak_until_weight_grad, 2 * p);
    }
  });
}

// Two ranks, one micro-batch: F 2, transfer 1 + 10 / 5, F 2, B 3, transfer 3, B 3.
TEST(Simulator, TellsWaitingForAPeerFromWaitingForALink) {
  const Schedule schedule = *make_schedule("1f1b", 2, 1, 1);
  ScheduleCosts costs;
  costs.stages.assign(2, {2, 1, 2});
  costs.latency = 1;
  costs.transfer_bytes = 10;
  costs.bytes_per_second = 5;
  costs.activations = {{100, 10}, {200, 20}};
  const absl::StatusOr<ScheduleForecast> result = simulate(schedule, costs);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->makespan, 16, kEps);
  const RankForecast& first = result->ranks[0];
  EXPECT_NEAR(first.busy, 5, kEps);
  EXPECT_NEAR(first.idle, 11, kEps);
  EXPECT_NEAR(first.own_idle, 11, kEps);
  EXPECT_NEAR(first.warmup_idle, 11, kEps);
  EXPECT_NEAR(first.exposed_communication, 3, kEps);  // Until 10 it waits for rank 1.
  EXPECT_EQ(first.peak_bytes, 110);
  const RankForecast& last = result->ranks[1];
  EXPECT_NEAR(last.own_idle, 0, kEps);
  EXPECT_NEAR(last.warmup_idle, 5, kEps);
  EXPECT_NEAR(last.cooldown_idle, 6, kEps);
  EXPECT_NEAR(last.exposed_communication, 3, kEps);
  EXPECT_EQ(last.peak_bytes, 220);
  ASSERT_EQ(result->transfers.size(), 2u);
  EXPECT_EQ(result->transfers[1].transfer, (Transfer{1, 0, 1, Transfer::Direction::kBackward, 0}));
  EXPECT_NEAR(result->transfers[1].start, 10, kEps);
  EXPECT_NEAR(result->transfers[1].end, 13, kEps);
}

TEST(Simulator, TheIdleOfAPlainPipelineIsFillingAndDraining) {
  const ScheduleForecast result = forecast("1f1b", 4, 1, 8);
  for (int r = 0; r < 4; ++r) {
    const RankForecast& rank = result.ranks[r];
    EXPECT_NEAR(rank.warmup_idle + rank.steady_idle + rank.cooldown_idle, rank.idle, kEps);
    EXPECT_NEAR(rank.exposed_communication, 0, kEps);
  }
  // The last rank waits for three forwards, never again, and at the end for three backwards.
  EXPECT_NEAR(result.ranks[3].warmup_idle, 3, kEps);
  EXPECT_NEAR(result.ranks[3].steady_idle, 0, kEps);
  EXPECT_NEAR(result.ranks[3].cooldown_idle, 6, kEps);
}

TEST(Simulator, StagesMayCostDifferently) {
  const Schedule schedule = *make_schedule("1f1b", 2, 1, 4);
  ScheduleCosts costs;
  costs.stages = {{1, 1, 1}, {2, 2, 2}};
  const absl::StatusOr<ScheduleForecast> result = simulate(schedule, costs);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->makespan, 1 + 4 * 6 + 2, kEps);  // The slow rank never stops.
  EXPECT_NEAR(result->ranks[1].own_idle, 0, kEps);
}

TEST(Simulator, AnswersForALoweredScheduleToo) {
  const Schedule schedule = *make_schedule("zb-v", 4, 2, 8);
  const Schedule lowered = lower(schedule)->schedule;
  const ScheduleCosts costs = costs_of(schedule, {1, 1, 1}, 0.2);
  EXPECT_NEAR(simulate(lowered, costs)->makespan, simulate(schedule, costs)->makespan, kEps);
}

TEST(Simulator, RefusesCostsThatDoNotFitAndDeadlocks) {
  const Schedule schedule = *make_schedule("1f1b", 2, 1, 2);
  ScheduleCosts costs = costs_of(schedule, {1, 1, 1});
  costs.stages.pop_back();
  EXPECT_THAT(std::string(simulate(schedule, costs).status().message()), HasSubstr("times of 1 and"));
  costs = costs_of(schedule, {1, 1, -1});
  EXPECT_THAT(std::string(simulate(schedule, costs).status().message()), HasSubstr("stage 0: F 1 s, I 1 s, W -1 s"));
  costs = costs_of(schedule, {1, 1, 1});
  costs.bytes_per_second = 0;
  EXPECT_THAT(std::string(simulate(schedule, costs).status().message()), HasSubstr("at 0 bytes/s"));
  costs = costs_of(schedule, {1, 1, 1});
  const Schedule circle = *parse_schedule("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0");
  EXPECT_EQ(simulate(circle, costs).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(simulate(circle, costs).status().message()),
              HasSubstr("rank 0, 0B0 (entry 2) waits for 1B0"));
  const Schedule loose = *parse_schedule("0F0,0W0\n1F0,1B0");
  EXPECT_THAT(std::string(simulate(loose, costs).status().message()), HasSubstr("0W0 (entry 3) waits for 0I0, which"));
}

TEST(Simulator, TraceHasEveryActionAndBothEndsOfEveryTransfer) {
  const ScheduleForecast result = forecast("1f1b", 2, 1, 2, {1, 1, 1}, 0.5);
  const nlohmann::json trace = nlohmann::json::parse(to_chrome_trace(result));
  int compute = 0;
  int links = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++(event["tid"] == 0 ? compute : links);
    if (event["name"] == "1F0") {
      EXPECT_EQ(event["pid"], 1);
      EXPECT_EQ(event["ts"], 1.5e6);
      EXPECT_EQ(event["dur"], 1e6);
      EXPECT_EQ(event["cat"], "forward");
    }
    if (event["name"] == "1RECV_F0") {
      EXPECT_EQ(event["tid"], 1);
      EXPECT_EQ(event["ts"], 1e6);
    }
  }
  EXPECT_EQ(compute, 8);
  EXPECT_EQ(links, 8);
}

}  // namespace
}  // namespace telar::parallel
