#include "worker/parallel/schedule_generators.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "worker/parallel/schedule_passes.h"
#include "worker/parallel/schedule_simulator.h"

namespace telar::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Schedule made(const std::string& name, int ranks, int virtual_stages, int micro_batches) {
  absl::StatusOr<Schedule> schedule = make_schedule(name, ranks, virtual_stages, micro_batches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

// A rank's list with blanks for commas.
std::string line(const Schedule& schedule, int rank) {
  std::string text;
  for (const Action& action : schedule.actions[rank]) absl::StrAppend(&text, text.empty() ? "" : " ", to_text(action));
  return text;
}

// The lists of p = 4, m = 8: those of 1f1b, interleaved and zb-h1 are what the zero-bubble authors' programs print,
// that of zb-v is PyTorch's.
TEST(Generators, OneFOneB) {
  const Schedule schedule = made("1f1b", 4, 1, 8);
  EXPECT_EQ(line(schedule, 0), "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7");
  EXPECT_EQ(line(schedule, 1), "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7");
  EXPECT_EQ(line(schedule, 2), "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7");
  EXPECT_EQ(line(schedule, 3), "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7");
}

TEST(Generators, Interleaved) {
  const Schedule schedule = made("interleaved", 4, 2, 8);
  EXPECT_EQ(line(schedule, 0),
            "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 0B3 4B4 4B5 "
            "4B6 4B7 0B4 0B5 0B6 0B7");
  EXPECT_EQ(line(schedule, 1),
            "1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 1F4 5B0 1F5 5B1 1F6 5B2 1F7 5B3 5F4 1B0 5F5 1B1 5F6 1B2 5F7 1B3 5B4 5B5 "
            "5B6 5B7 1B4 1B5 1B6 1B7");
  EXPECT_EQ(line(schedule, 2),
            "2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 2F4 6B2 2F5 6B3 2F6 2B0 2F7 2B1 6F4 2B2 6F5 2B3 6F6 6B4 6F7 6B5 "
            "6B6 6B7 2B4 2B5 2B6 2B7");
  EXPECT_EQ(line(schedule, 3),
            "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 7B5 7F6 7B6 "
            "7F7 7B7 3B4 3B5 3B6 3B7");
}

TEST(Generators, ZeroBubbleH1) {
  const Schedule schedule = made("zb-h1", 4, 1, 8);
  EXPECT_EQ(line(schedule, 0),
            "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7");
  EXPECT_EQ(line(schedule, 3),
            "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7");
}

TEST(Generators, ZeroBubbleV) {
  const Schedule schedule = made("zb-v", 4, 2, 8);
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(line(schedule, 3),
            "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 3I2 3W2 4F6 "
            "4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 4W7 3W5 3W6 3W7");
  // Less than fills the pipeline: no weight gradient before an input gradient that a rank waits for.
  EXPECT_EQ(line(made("zb-v", 2, 2, 2), 1), "1F0 2F0 1F1 2F1 2I0 2W0 1I0 2I1 1I1 1W0 2W1 1W1");
}

TEST(Generators, GPipe) {
  const Schedule schedule = made("gpipe", 2, 1, 3);
  EXPECT_EQ(line(schedule, 0), "0F0 0F1 0F2 0B0 0B1 0B2");
  EXPECT_EQ(line(made("gpipe", 2, 2, 2), 1), "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1");
}

// The example in Megatron-LM's documentation of its interleaved order: p = 2, m = 5, v = 2 in groups of 3, rank 0; the
// stage of the rank from 1, negative for its backward.
TEST(Generators, InterleavedInUnevenGroups) {
  EXPECT_EQ(interleaved_group(2, 5), 3);
  const Schedule schedule = made("interleaved", 2, 2, 5);
  std::vector<int> order;
  for (const Action& action : schedule.actions[0]) {
    order.push_back((action.stage / 2 + 1) * (action.kind == ActionKind::kForward ? 1 : -1));
  }
  EXPECT_THAT(order, ElementsAre(1, 1, 1, 2, 2, 2, -2, 1, -2, 1, -2, 2, -1, 2, -1, -1, -2, -2, -1, -1));
}

TEST(Generators, GroupsAreMegatronsAndPyTorchs) {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; ++m) {
      const int group = interleaved_group(p, m);
      const int rest = m % group;
      EXPECT_TRUE(m <= p ? group == m : group >= p && (rest == 0 || rest >= p)) << "p " << p << " m " << m;
      const int rounds = std::max(1, m / p);
      if (m % rounds == 0) {
        EXPECT_EQ(group, m / rounds) << "p " << p << " m " << m;
      }
    }
  }
}

TEST(Generators, RefuseWithTheArithmetic) {
  const auto message = [](const std::string& name, int p, int v, int m) {
    const absl::StatusOr<Schedule> schedule = make_schedule(name, p, v, m);
    EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument) << name;
    return std::string(schedule.status().message());
  };
  EXPECT_THAT(message("1f1b", 4, 2, 8),
              HasSubstr("4 ranks x 2 stages a rank = 8 stages, but it has 1 a rank, 4 in all"));
  EXPECT_THAT(message("zb-h1", 4, 3, 8), HasSubstr("12 stages"));
  EXPECT_THAT(message("zb-v", 4, 1, 8),
              HasSubstr("4 ranks x 1 stages a rank = 4 stages, but it has 2 a rank, 8 in all"));
  EXPECT_THAT(message("2f2b", 4, 1, 8), HasSubstr("'2f2b' is none of gpipe, 1f1b"));
  EXPECT_THAT(message("1f1b", 0, 1, 8), HasSubstr("0 ranks"));
  EXPECT_THAT(message("1f1b", 4, 1, 0), HasSubstr("0 micro-batches"));
  EXPECT_THAT(message("interleaved", 4, -1, 1), HasSubstr("-1 stages a rank"));
  EXPECT_THAT(message("gpipe", 2000000000, 2000000000, 2000000000), HasSubstr("more than the"));
}

struct Kind {
  const char* name;
  int virtual_stages;
};
const std::vector<Kind> kKinds = {{"gpipe", 1},       {"gpipe", 2},       {"1f1b", 1},
                                  {"interleaved", 1}, {"interleaved", 2}, {"interleaved", 3},
                                  {"interleaved", 4}, {"zb-h1", 1},       {"zb-v", 2}};

TEST(Generators, EverySizeIsValidAndRuns) {
  for (const Kind& kind : kKinds) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 32; ++m) {
        SCOPED_TRACE(absl::StrCat(kind.name, " p ", p, " v ", kind.virtual_stages, " m ", m));
        const Schedule schedule = made(kind.name, p, kind.virtual_stages, m);
        EXPECT_EQ(schedule.stages, p * kind.virtual_stages);
        ASSERT_TRUE(validate(schedule).ok()) << validate(schedule);
        const absl::StatusOr<LoweredSchedule> lowered = lower(schedule);
        ASSERT_TRUE(lowered.ok()) << lowered.status();
        ASSERT_TRUE(validate(lowered->schedule).ok()) << validate(lowered->schedule);
        ScheduleCosts costs;
        costs.stages.assign(schedule.stages, {1, 1.3, 0.7});
        costs.latency = 0.1;
        const absl::StatusOr<ScheduleForecast> forecast = simulate(schedule, costs);
        ASSERT_TRUE(forecast.ok()) << forecast.status();
        EXPECT_GE(forecast->makespan, 3.0 * m * kind.virtual_stages - 1e-9);
        EXPECT_EQ(*parse_schedule(to_text(schedule)), schedule);
      }
    }
  }
}

TEST(Generators, EveryStagesBackwardsRunInOrder) {
  for (const Kind& kind : kKinds) {
    for (const int m : {1, 5, 8, 13}) {
      const Schedule schedule = made(kind.name, 4, kind.virtual_stages, m);
      for (const ActionKind part : {ActionKind::kBackward, ActionKind::kInputGrad, ActionKind::kWeightGrad}) {
        std::map<int, int> next;
        for (const std::vector<Action>& actions : schedule.actions) {
          for (const Action& action : actions) {
            if (action.kind != part) continue;
            EXPECT_EQ(action.micro_batch, next[action.stage]++) << kind.name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace telar::parallel
