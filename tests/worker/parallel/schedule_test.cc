#include "worker/parallel/schedule.h"

#include <gmock/gmock.h>

#include <random>

namespace telar::parallel {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::string& text) {
  const absl::StatusOr<Schedule> schedule = parse_schedule(text);
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(schedule.status().message());
}

TEST(ScheduleText, NamesEveryKind) {
  const std::string text =
      "0UNSHARD,0F0,0SEND_F0,0F12,0SEND_F12,0RECV_B0,0B0,0RECV_B12,0I12,0W12,0REDUCE_GRAD,0RESHARD\n"
      "1RECV_F0,1F0,1RECV_F12,1B0,1SEND_B0,1F12,1I12,1SEND_B12,1W12\n";
  const absl::StatusOr<Schedule> schedule = parse_schedule(text);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(to_text(*schedule), text);
  EXPECT_EQ(schedule->ranks, 2);
  EXPECT_EQ(schedule->stages, 2);
  EXPECT_EQ(schedule->micro_batches, 13);
  EXPECT_EQ(schedule->actions[0][0], (Action{0, ActionKind::kUnshard, -1}));
  EXPECT_EQ(schedule->actions[0][5], (Action{0, ActionKind::kRecvBackward, 0}));
  EXPECT_EQ(schedule->actions[1][6], (Action{1, ActionKind::kInputGrad, 12}));
}

TEST(ScheduleText, PassesOverBubblesAndSpaces) {
  const absl::StatusOr<Schedule> schedule = parse_schedule("0F0,,0B0, ,3F0 ,3B0\r\n,1F0,\t1B0,2F0,2B0,\r\n\n \n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(to_text(*schedule), "0F0,0B0,3F0,3B0\n1F0,1B0,2F0,2B0\n");
  EXPECT_EQ(schedule->rank_of_stage, (std::vector<int>{0, 1, 1, 0}));
}

TEST(ScheduleText, KeepsTheLineOfARankWithoutActions) {
  const absl::StatusOr<Schedule> schedule = parse_schedule("0F0,0B0\n,,\n1F0,1B0");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->ranks, 3);
  EXPECT_TRUE(schedule->actions[1].empty());
}

TEST(ScheduleText, SaysWhereItCannotBeRead) {
  EXPECT_THAT(message_of("0F0,0B0\n1F0, 1Q0"), HasSubstr("line 2, entry 2 (column 6): '1Q0' is not"));
  EXPECT_THAT(message_of("0F0,F1"), HasSubstr("line 1, entry 2 (column 5): 'F1'"));
  EXPECT_THAT(message_of("0F"), HasSubstr("'0F'"));
  EXPECT_THAT(message_of("0F0x"), HasSubstr("'0F0x'"));
  EXPECT_THAT(message_of("0F-1"), HasSubstr("'0F-1'"));
  EXPECT_THAT(message_of("0f0"), HasSubstr("'0f0'"));
  EXPECT_THAT(message_of("0UNSHARD1"), HasSubstr("'0UNSHARD1'"));
  EXPECT_THAT(message_of("(0F0;0B0)OVERLAP_F_B"), HasSubstr("'(0F0;0B0)OVERLAP_F_B'"));
  EXPECT_THAT(message_of("0F99999999999999999999"), HasSubstr("at most 999999"));
  EXPECT_THAT(message_of(std::string(5000, '7')), HasSubstr("7...'"));
  EXPECT_THAT(message_of(""), HasSubstr("empty"));
  EXPECT_THAT(message_of(" ,\n\n"), HasSubstr("no line has an action"));
}

TEST(ScheduleText, AStageLivesOnOneRank) {
  EXPECT_THAT(message_of("0F0,0B0\n1F0,1B0,0F1"),
              HasSubstr("line 2, entry 3 (column 9): '0F1' puts stage 0 on rank 1, but schedule line 1, entry 1"));
  EXPECT_THAT(message_of("0F0,0B0\n3F0,3B0"), HasSubstr("stage 1 is on no line, but stage 3 is"));
}

TEST(ScheduleText, AnythingIsReadOrRefused) {
  const std::string letters = "0123F B,I\nW_SEND\rRECV;(";
  std::mt19937 random(17);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const size_t size = random() % 24;
    for (size_t i = 0; i < size; ++i) text += letters[random() % letters.size()];
    const absl::StatusOr<Schedule> schedule = parse_schedule(text);
    if (!schedule.ok()) continue;
    const absl::StatusOr<Schedule> again = parse_schedule(to_text(*schedule));
    ASSERT_TRUE(again.ok()) << text << " -> " << again.status();
    EXPECT_EQ(*again, *schedule) << text;
  }
}

TEST(ScheduleShape, NamesWhatDoesNotFit) {
  Schedule schedule = *parse_schedule("0F0,0B0\n1F0,1B0");
  EXPECT_TRUE(check_shape(schedule).ok());
  Schedule wrong = schedule;
  wrong.actions[1][1].micro_batch = 7;
  EXPECT_THAT(std::string(check_shape(wrong).message()), HasSubstr("rank 1, 1B7 (entry 2)"));
  wrong = schedule;
  wrong.rank_of_stage[1] = 2;
  EXPECT_THAT(std::string(check_shape(wrong).message()), HasSubstr("stage 1 is on rank 2 of 2"));
  wrong = schedule;
  wrong.micro_batches = 1000000;
  EXPECT_THAT(std::string(check_shape(wrong).message()), HasSubstr("2 stages x 1000000 micro-batches"));
  EXPECT_FALSE(check_shape({}).ok());
}

}  // namespace
}  // namespace telar::parallel
