#include "worker/parallel/schedule_passes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/parallel/schedule_simulator.h"

namespace telar::parallel {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Schedule parsed(const std::string& text) {
  absl::StatusOr<Schedule> schedule = parse_schedule(text);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

Schedule lowered(const Schedule& schedule) {
  absl::StatusOr<LoweredSchedule> result = lower(schedule);
  EXPECT_TRUE(result.ok()) << result.status();
  return result->schedule;
}

int transfers_in(const Schedule& schedule) {
  int count = 0;
  for (const std::vector<Action>& actions : schedule.actions) {
    count += static_cast<int>(
        std::count_if(actions.begin(), actions.end(), [](const Action& a) { return is_transfer(a.kind); }));
  }
  return count;
}

TEST(Lower, PlacesSendAndRecvTogether) {
  const absl::StatusOr<LoweredSchedule> result = lower(*make_schedule("1f1b", 2, 1, 2));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(to_text(result->schedule),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  using Direction = Transfer::Direction;
  EXPECT_THAT(result->transfers,
              ElementsAre(Transfer{0, 1, 0, Direction::kForward, 0}, Transfer{0, 1, 0, Direction::kForward, 1},
                          Transfer{1, 0, 1, Direction::kBackward, 0}, Transfer{1, 0, 1, Direction::kBackward, 1}));
}

TEST(Lower, CountsOfFourRanks) {
  EXPECT_EQ(transfers_in(lowered(*make_schedule("1f1b", 4, 1, 8))), 96);
  EXPECT_EQ(transfers_in(lowered(*make_schedule("interleaved", 4, 2, 8))), 224);
  // The turn of the V stays on its rank: 6 of 7 boundaries cross.
  EXPECT_EQ(transfers_in(lowered(*make_schedule("zb-v", 4, 2, 8))), 6 * 8 * 4);
  EXPECT_EQ(transfers_in(lowered(*make_schedule("interleaved", 1, 3, 8))), 0);
}

// Every rank's own transfers, as its list has them, are the global order without those of others.
TEST(Lower, EveryRankAgreesWithTheGlobalOrder) {
  for (const auto& [name, v] : {std::pair{"1f1b", 1}, {"interleaved", 3}, {"zb-h1", 1}, {"zb-v", 2}, {"gpipe", 2}}) {
    const absl::StatusOr<LoweredSchedule> result = lower(*make_schedule(name, 4, v, 9));
    ASSERT_TRUE(result.ok()) << result.status();
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<Action> own;
      for (const Transfer& t : result->transfers) {
        const bool forward = t.direction == Transfer::Direction::kForward;
        const int to_stage = t.stage + (forward ? 1 : -1);
        EXPECT_EQ(t.from_rank, result->schedule.rank_of_stage[t.stage]);
        EXPECT_EQ(t.to_rank, result->schedule.rank_of_stage[to_stage]);
        if (t.from_rank == rank) {
          own.push_back({t.stage, forward ? ActionKind::kSendForward : ActionKind::kSendBackward, t.micro_batch});
        }
        if (t.to_rank == rank) {
          own.push_back({to_stage, forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward, t.micro_batch});
        }
      }
      std::vector<Action> listed = result->schedule.actions[rank];
      std::erase_if(listed, [](const Action& action) { return !is_transfer(action.kind); });
      EXPECT_EQ(listed, own) << name << " rank " << rank;
    }
  }
}

TEST(Lower, KeepsTransfersThatAreThere) {
  const absl::StatusOr<LoweredSchedule> once = lower(*make_schedule("interleaved", 4, 2, 6));
  const absl::StatusOr<LoweredSchedule> twice = lower(once->schedule);
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_EQ(twice->schedule, once->schedule);
  EXPECT_THAT(twice->transfers, ::testing::UnorderedElementsAreArray(once->transfers));
}

TEST(Lower, NamesWhatHangs) {
  const absl::Status status = lower(parsed("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0, 0B0 (entry 2) waits for 1B0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1, 1F1 (entry 1) waits for 0F1"));
}

TEST(MergeBackward, JoinsOnlyNeighboursOfOneMicroBatch) {
  EXPECT_EQ(to_text(merge_backward(parsed("0F0,0I0,0W0,0F1,0I1,0F2,0W1,0I2,1F0,0W2,1I0,1W0"))),
            "0F0,0B0,0F1,0I1,0F2,0W1,0I2,1F0,0W2,1B0\n");
  EXPECT_EQ(to_text(merge_backward(parsed("0I0,0W1,1W0"))), "0I0,0W1,1W0\n");
  const Schedule merged = merge_backward(*make_schedule("zb-h1", 1, 1, 5));
  EXPECT_EQ(merged, *make_schedule("1f1b", 1, 1, 5));
}

std::vector<std::string> problems(const Schedule& schedule, const ScheduleLimits& limits = {}) {
  std::vector<std::string> texts;
  for (const ScheduleProblem& problem : find_problems(schedule, limits)) texts.push_back(to_text(problem));
  EXPECT_EQ(texts.empty(), validate(schedule, limits).ok());
  return texts;
}

void erase(Schedule& schedule, int rank, const std::string& action) {
  std::vector<Action>& actions = schedule.actions[rank];
  ASSERT_EQ(std::erase_if(actions, [&](const Action& a) { return to_text(a) == action; }), 1u) << action;
}

void swap(Schedule& schedule, int rank, const std::string& a, const std::string& b) {
  std::vector<Action>& actions = schedule.actions[rank];
  const auto find = [&](const std::string& text) {
    return std::find_if(actions.begin(), actions.end(), [&](const Action& action) { return to_text(action) == text; });
  };
  ASSERT_TRUE(find(a) != actions.end() && find(b) != actions.end()) << a << " " << b;
  std::iter_swap(find(a), find(b));
}

TEST(Validate, FindsMissingAndRepeatedActions) {
  Schedule schedule = *make_schedule("1f1b", 2, 1, 3);
  erase(schedule, 1, "1B1");
  EXPECT_THAT(
      problems(schedule),
      ElementsAre("rank 1, 1B1: stage 1, micro-batch 1 has 0 B, 0 I and 0 W; it must have 1 B, or 1 I and 1 W"));
  schedule = *make_schedule("1f1b", 2, 1, 3);
  erase(schedule, 0, "0F2");
  EXPECT_THAT(problems(schedule), Contains("rank 0, 0F2: stage 0, micro-batch 2 has 0 F; it must have 1"));
  schedule = *make_schedule("zb-h1", 2, 1, 3);
  erase(schedule, 1, "1W2");
  EXPECT_THAT(problems(schedule), Contains(HasSubstr("micro-batch 2 has 0 B, 1 I and 0 W")));
  schedule = *make_schedule("zb-h1", 2, 1, 3);
  erase(schedule, 1, "1I2");
  EXPECT_THAT(problems(schedule), Contains(HasSubstr("micro-batch 2 has 0 B, 0 I and 1 W")));
  schedule = *make_schedule("1f1b", 2, 1, 3);
  schedule.actions[0].push_back({0, ActionKind::kBackward, 0});
  EXPECT_THAT(problems(schedule), ElementsAre(HasSubstr("rank 0, 0B0 (entry 3): stage 0, micro-batch 0 has 2 B")));
  schedule.actions[0].back() = {0, ActionKind::kWeightGrad, 0};
  EXPECT_THAT(problems(schedule), Contains(HasSubstr("has 1 B, 0 I and 1 W")));
  schedule = *make_schedule("1f1b", 2, 1, 3);
  schedule.actions[1].push_back({1, ActionKind::kForward, 0});
  EXPECT_THAT(problems(schedule), ElementsAre(HasSubstr("has 2 F; it must have 1")));
}

TEST(Validate, FindsWrongOrder) {
  Schedule schedule = *make_schedule("1f1b", 2, 1, 3);
  swap(schedule, 1, "1F1", "1B1");
  EXPECT_THAT(problems(schedule), ElementsAre("rank 1, 1B1 (entry 3): comes before 1F1 (entry 4), which it needs"));
  schedule = *make_schedule("zb-h1", 2, 1, 3);
  swap(schedule, 0, "0I1", "0W1");
  EXPECT_THAT(problems(schedule), ElementsAre(HasSubstr("rank 0, 0W1 (entry 6): comes before 0I1")));
  schedule = *make_schedule("zb-v", 2, 2, 3);  // Stages 1 and 2 are neighbours on rank 1.
  swap(schedule, 1, "1F0", "2F0");
  EXPECT_THAT(problems(schedule), ElementsAre(HasSubstr("rank 1, 2F0 (entry 1): comes before 1F0")));
  schedule = parsed("0F0,0F1,0B0,0REDUCE_GRAD,0B1");
  EXPECT_THAT(
      problems(schedule),
      ElementsAre("rank 0, 0REDUCE_GRAD (entry 4): comes before the last weight gradient of its stage, entry 5"));
  EXPECT_THAT(problems(parsed("0UNSHARD,0F0,0F1,0B0,0B1,0REDUCE_GRAD,0RESHARD")), IsEmpty());
}

TEST(Validate, FindsStagesInTheWrongPlace) {
  Schedule schedule = *make_schedule("1f1b", 2, 1, 2);
  schedule.actions[0].push_back({1, ActionKind::kForward, 1});
  EXPECT_THAT(problems(schedule), Contains("rank 0, 1F1 (entry 5): stage 1 is on rank 1; a stage lives on one rank"));
  EXPECT_THAT(problems(parsed("0F0,0B0\n,\n1F0,1B0")), ElementsAre("rank 1: has none of the 2 stages"));
  EXPECT_THAT(problems(Schedule{}), ElementsAre(HasSubstr("0 ranks")));
}

TEST(Validate, FindsWrongTransfers) {
  const Schedule good = lowered(*make_schedule("1f1b", 2, 1, 2));
  EXPECT_THAT(problems(good), IsEmpty());
  Schedule schedule = good;
  erase(schedule, 0, "0SEND_F1");
  EXPECT_THAT(problems(schedule), ElementsAre("rank 1, 1RECV_F1 (entry 3): has no 0SEND_F1 on rank 0"));
  schedule = good;
  erase(schedule, 0, "0RECV_B1");
  EXPECT_THAT(problems(schedule), ElementsAre("rank 0, 0B1 (entry 7): needs 0RECV_B1, which is not in the list",
                                              "rank 1, 1SEND_B1 (entry 8): has no 0RECV_B1 on rank 0"));
  schedule = good;
  swap(schedule, 1, "1B0", "1SEND_B0");
  EXPECT_THAT(problems(schedule),
              ElementsAre("rank 1, 1SEND_B0 (entry 4): comes before 1B0 (entry 5), which it needs"));
  schedule = good;
  swap(schedule, 1, "1RECV_F0", "1F0");
  EXPECT_THAT(problems(schedule), ElementsAre(HasSubstr("rank 1, 1F0 (entry 1): comes before 1RECV_F0")));
  schedule = good;
  schedule.actions[0].push_back({0, ActionKind::kSendForward, 1});
  EXPECT_THAT(problems(schedule), ElementsAre("rank 0, 0SEND_F1 (entry 9): is there twice, first as entry 4"));
  schedule = good;
  schedule.actions[1].push_back({1, ActionKind::kSendForward, 1});
  EXPECT_THAT(problems(schedule), ElementsAre("rank 1, 1SEND_F1 (entry 9): goes beyond the end of the 2 stages"));
  EXPECT_THAT(problems(parsed("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0")),
              ElementsAre("rank 0, 0SEND_F0 (entry 2): stages 0 and 1 are on one rank",
                          "rank 0, 1RECV_F0 (entry 3): stages 1 and 0 are on one rank"));
}

TEST(Validate, FindsDeadlocks) {
  // Without transfers: each rank waits for what the other does later.
  EXPECT_THAT(
      problems(parsed("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0")),
      ElementsAre("schedule: deadlock: rank 0, 0B0 (entry 2) waits for 1B0; rank 1, 1F1 (entry 1) waits for 0F1"));
  // Both queues of the pair see the two messages in different orders.
  Schedule schedule = lowered(*make_schedule("1f1b", 2, 1, 2));
  swap(schedule, 0, "0RECV_B0", "0SEND_F1");
  EXPECT_THAT(problems(schedule),
              ElementsAre(HasSubstr("rank 0, 0RECV_B0 (entry 4): deadlock with one queue a rank: waits for 1SEND_B0"),
                          HasSubstr("rank 1, 1RECV_F1 (entry 3): deadlock with one queue a rank: waits for 0SEND_F1"),
                          HasSubstr("deadlock with one queue a pair of ranks"), HasSubstr("a pair of ranks"),
                          HasSubstr("a pair of ranks"), HasSubstr("a pair of ranks")));
}

// Three ranks in a ring: each sends on before it takes what is next from behind, and rank 0 sends all it has before it
// takes what comes around. With queues a pair of ranks that is well; ranks that block on each transfer wait in a
// circle.
TEST(Validate, TellsBlockingRanksFromQueuesAPair) {
  Schedule schedule = lowered(*make_schedule("interleaved", 3, 2, 3));
  EXPECT_THAT(problems(schedule), IsEmpty());
  std::vector<Action>& first = schedule.actions[0];
  std::erase_if(first, [](const Action& action) { return action.kind == ActionKind::kRecvForward; });
  const auto last_send = std::find(first.begin(), first.end(), Action{0, ActionKind::kSendForward, 2});
  first.insert(last_send + 1,
               {{3, ActionKind::kRecvForward, 0}, {3, ActionKind::kRecvForward, 1}, {3, ActionKind::kRecvForward, 2}});
  EXPECT_THAT(problems(schedule),
              ElementsAre(HasSubstr("rank 0, 0SEND_F2 (entry 6): deadlock with one queue a rank: waits for 1RECV_F2"),
                          HasSubstr("rank 1, 1SEND_F1 (entry 6): deadlock with one queue a rank: waits for 2RECV_F1"),
                          HasSubstr("rank 2, 2SEND_F0 (entry 3): deadlock with one queue a rank: waits for 3RECV_F0")));
}

TEST(Validate, HoldsMemoryLimits) {
  const Schedule schedule = *make_schedule("zb-h1", 4, 1, 8);
  ScheduleLimits limits;
  limits.until_input_grad = 4;
  limits.until_weight_grad = 4;
  EXPECT_THAT(problems(schedule, limits), IsEmpty());
  limits.until_input_grad = 3;
  EXPECT_THAT(problems(schedule, limits),
              ElementsAre("rank 0, 0F3 (entry 4): 4 stage activations until I are alive, more than the limit of 3"));
  limits = {};
  limits.until_weight_grad = 3;
  EXPECT_THAT(problems(schedule, limits), SizeIs(4));
  limits = {};
  limits.bytes = 4 * 10 + 4 * 5;
  limits.activations.assign(4, {10, 5});
  EXPECT_THAT(problems(schedule, limits), IsEmpty());
  limits.bytes -= 1;
  EXPECT_THAT(problems(schedule, limits),
              ElementsAre("rank 0, 0F3 (entry 4): 60 bytes of activations are alive, more than the limit of 59"));
  limits.activations.pop_back();
  EXPECT_THAT(problems(schedule, limits), ElementsAre(HasSubstr("activation bytes of 3 stages for 4 stages")));
}

// What the validator lets pass the simulator must get to the end of, and what it holds to be a deadlock is one: a
// schedule whose only fault is its order is passed if and only if blocking ranks finish it.
TEST(Validate, AgreesWithTheSimulatorOnShuffledSchedules) {
  std::mt19937 random(23);
  int valid = 0;
  int deadlocks = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto [name, v] = std::vector<std::pair<const char*, int>>{
        {"1f1b", 1}, {"interleaved", 2}, {"zb-h1", 1}, {"zb-v", 2}}[random() % 4];
    Schedule schedule = *make_schedule(name, 1 + static_cast<int>(random() % 4), v, 1 + static_cast<int>(random() % 4));
    if (random() % 2 == 0) schedule = lowered(schedule);
    for (uint32_t swaps = 1 + random() % 3; swaps > 0; --swaps) {
      std::vector<Action>& actions = schedule.actions[random() % schedule.ranks];
      const size_t at = random() % (actions.size() - 1);
      std::swap(actions[at], actions[at + 1]);
    }
    SCOPED_TRACE(to_text(schedule));
    ScheduleCosts costs;
    costs.stages.assign(schedule.stages, {1, 1, 1});
    const std::vector<std::string> found = problems(schedule);
    EXPECT_EQ(simulate(schedule, costs).ok(), found.empty()) << (found.empty() ? "" : found.front());
    valid += found.empty();
    deadlocks += !found.empty() && found.front().find("deadlock") != std::string::npos;
  }
  EXPECT_GT(valid, 100);
  EXPECT_GT(deadlocks, 100);
}

TEST(Validate, CutsLongLists) {
  Schedule schedule = *make_schedule("1f1b", 2, 1, 40);
  std::erase_if(schedule.actions[1], [](const Action& action) { return action.kind == ActionKind::kBackward; });
  EXPECT_THAT(std::string(validate(schedule).message()), HasSubstr("; and 20 more"));
}

TEST(Validate, LargeSchedules) {
  const Schedule schedule = lowered(*make_schedule("interleaved", 16, 4, 256));
  EXPECT_EQ(transfers_in(schedule), 63 * 256 * 4);
  EXPECT_TRUE(validate(schedule).ok());
}

}  // namespace
}  // namespace telar::parallel
