// Who is to blame when a gang hangs: every case is what workers could have told.
#include "server/jobs/hang.h"

#include <deque>

#include <gmock/gmock.h>

namespace telar::server::jobs {
namespace {

using testing::HasSubstr;

using v1::FlightEntry;

// A gang under construction: rank r is on node "a", "b", ... by r.
class HangTest : public testing::Test {
 protected:
  GangMember& rank(uint32_t number) {
    while (gang_.size() <= number) {
      GangMember member;
      member.rank = static_cast<uint32_t>(gang_.size());
      member.node = std::string(1, static_cast<char>('a' + gang_.size()));
      member.pace.set_activity(v1::RankPace::TRAINING);
      member.pace.set_step(11);
      gang_.push_back(member);
    }
    return gang_[number];
  }
  v1::FlightRecord& record(uint32_t number) {
    GangMember& member = rank(number);
    if (member.record == nullptr) {
      records_.emplace_back();
      records_.back().set_process("sleeping");
      member.record = &records_.back();
    }
    return const_cast<v1::FlightRecord&>(*member.record);
  }
  void call(uint32_t number, const std::string& group, std::vector<uint32_t> ranks, uint64_t sequence,
            FlightEntry::State state, const std::string& op = "all_reduce", double open = 63) {
    FlightEntry& entry = *record(number).add_entries();
    entry.set_group(group);
    entry.set_sequence(sequence);
    entry.set_op(op);
    entry.set_state(state);
    entry.set_step(12);
    entry.set_seconds(open);
    for (const uint32_t one : ranks) entry.add_ranks(one);
  }

  std::vector<GangMember> gang_;
  std::deque<v1::FlightRecord> records_;
};

TEST_F(HangTest, NamesTheRankThatIsNotInTheCall) {
  for (const uint32_t number : {0u, 1u, 2u, 3u}) {
    call(number, "data.0", {0, 1, 2, 3}, 8840, FlightEntry::DONE);
    if (number != 1) call(number, "data.0", {0, 1, 2, 3}, 8841, FlightEntry::RUNNING);
  }
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_EQ(verdict.rank, 1u);
  EXPECT_TRUE(verdict.named);
  EXPECT_FALSE(verdict.of_node);
  EXPECT_EQ(verdict.message,
            "is not in all_reduce 8841 of group data.0 (step 12), which ranks 0, 2 and 3 wait in for 63 s");
}

// Rank 0 waits for 1, which waits for 3; all wait for somebody but 3.
TEST_F(HangTest, FollowsTheChainToItsEnd) {
  call(0, "world.0", {0, 1, 2, 3}, 5, FlightEntry::RUNNING);
  call(2, "world.0", {0, 1, 2, 3}, 5, FlightEntry::RUNNING);
  call(1, "world.0", {0, 1, 2, 3}, 4, FlightEntry::DONE);
  call(3, "world.0", {0, 1, 2, 3}, 4, FlightEntry::DONE);
  call(1, "flow.3-1", {1, 3}, 71, FlightEntry::RUNNING, "recv");
  call(3, "flow.3-1", {1, 3}, 70, FlightEntry::DONE, "send");
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_EQ(verdict.rank, 3u);
  EXPECT_TRUE(verdict.named);
}

TEST_F(HangTest, ARankThatNeverCalledIsMissingFromTheFirstCall) {
  call(0, "world.0", {0, 1}, 1, FlightEntry::RUNNING);
  record(1);  // Empty.
  EXPECT_EQ(find_cause(gang_).rank, 1u);
  EXPECT_THAT(find_cause(gang_).message, HasSubstr("all_reduce 1 of group world.0"));
}

// On a device that runs from graphs whole steps are handed over: who has not handed over the step is missing.
TEST_F(HangTest, NobodyIsNamedThatIsNotOfTheGang) {
  call(0, "world.0", {0, 1, 99}, 8, FlightEntry::RUNNING);
  call(1, "world.0", {0, 1, 99}, 8, FlightEntry::RUNNING);
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_LT(verdict.rank, 2u);
  EXPECT_FALSE(verdict.named);
}

TEST_F(HangTest, AnAccountTellsTheOpenCallOrTheLastOne) {
  call(0, "world.0", {0, 1}, 7, FlightEntry::DONE);
  call(0, "world.0", {}, 8, FlightEntry::RUNNING);
  call(0, "data.0", {0, 1}, 3, FlightEntry::DONE);
  call(1, "world.0", {0, 1}, 7, FlightEntry::DONE);
  rank(0).pace.set_silent_seconds(63);
  EXPECT_EQ(account_of(rank(0)), "rank 0 on node " + rank(0).node +
                                     ": process sleeping, all_reduce 8 of group world.0 (step 12) RUNNING for 63 s; "
                                     "has got nowhere for 63 s behind step 11");
  EXPECT_THAT(account_of(rank(1)), HasSubstr("all_reduce 7 of group world.0 (step 12) DONE for 63 s"));
}

TEST_F(HangTest, AHostThatHandsNothingOverIsMissingFromTheFirstCallOfTheStep) {
  for (const uint32_t number : {0u, 1u}) {
    for (uint64_t sequence = 1; sequence <= 10; ++sequence) {
      call(number, "shard.0", {0, 1}, sequence, FlightEntry::DONE);
    }
  }
  for (uint64_t sequence = 11; sequence <= 30; ++sequence) call(1, "shard.0", {0, 1}, sequence, FlightEntry::QUEUED);
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_EQ(verdict.rank, 0u);
  EXPECT_THAT(verdict.message, HasSubstr("is not in all_reduce 11 of group shard.0"));
}

TEST_F(HangTest, AStoppedProcessIsToBlameWhereverItIs) {
  for (const uint32_t number : {0u, 1u}) call(number, "world.0", {0, 1}, 9, FlightEntry::RUNNING);
  record(1).set_process("stopped");  // In the midst of the call that all are in.
  HangVerdict verdict = find_cause(gang_);
  EXPECT_EQ(verdict.rank, 1u);
  EXPECT_TRUE(verdict.of_node);
  EXPECT_EQ(verdict.message,
            "has got nowhere in all_reduce 9 of group world.0 (step 12) for 63 s; its process is stopped");

  gang_.clear();
  call(0, "world.0", {0, 1}, 9, FlightEntry::RUNNING);
  record(1).set_process("stopped");
  verdict = find_cause(gang_);
  EXPECT_EQ(
      verdict.message,
      "is not in all_reduce 9 of group world.0 (step 12), which rank 0 waits in for 63 s; its process is stopped");
}

TEST_F(HangTest, AWorkerThatSendsNoRecordIsNamedWithItsRank) {
  call(0, "world.0", {0, 1}, 9, FlightEntry::RUNNING);
  rank(1).pace.set_silent_seconds(70);
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_EQ(verdict.rank, 1u);
  EXPECT_TRUE(verdict.of_node);
  EXPECT_THAT(verdict.message, HasSubstr("its worker sends no flight record"));
}

TEST_F(HangTest, WithoutAnyRecordItIsTheMostSilentOneAndNobodyIsNamed) {
  rank(0).pace.set_silent_seconds(61);
  rank(1).pace.set_silent_seconds(75);
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_EQ(verdict.rank, 1u);
  EXPECT_FALSE(verdict.named);
  EXPECT_EQ(verdict.message, "has got nowhere for 75 s behind step 11; no worker sends a flight record");
}

TEST_F(HangTest, ACallThatAllAreInIsNobodysFault) {
  for (const uint32_t number : {0u, 1u}) call(number, "world.0", {0, 1}, 9, FlightEntry::RUNNING);
  rank(0).node = rank(1).node = "a";
  HangVerdict verdict = find_cause(gang_);
  EXPECT_FALSE(verdict.named);
  EXPECT_FALSE(verdict.of_node);
  EXPECT_THAT(verdict.message, HasSubstr("no rank is missing from a call"));

  rank(1).node = "b";  // What one says is lost on its way to the other.
  verdict = find_cause(gang_);
  EXPECT_FALSE(verdict.named);
  EXPECT_TRUE(verdict.of_node);
  EXPECT_THAT(verdict.message, HasSubstr("no rank is missing from a call"));
}

// Rank 0 got what it needed and went on; what it said itself never came to rank 1.
TEST_F(HangTest, WhoIsStillInACallThatOthersLeftIsNotToBlame) {
  call(0, "shard.0", {0, 1}, 9, FlightEntry::DONE);
  call(0, "world.0", {0, 1}, 5, FlightEntry::RUNNING);
  call(1, "shard.0", {0, 1}, 9, FlightEntry::RUNNING);
  rank(0).node = rank(1).node = "a";
  EXPECT_EQ(find_cause(gang_).rank, 1u);
  EXPECT_FALSE(find_cause(gang_).of_node);
  rank(1).node = "b";
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_EQ(verdict.rank, 1u);
  EXPECT_TRUE(verdict.of_node);
  EXPECT_THAT(verdict.message, HasSubstr("it is still in all_reduce 9 of group shard.0"));
}

TEST_F(HangTest, RanksThatWaitForEachOtherAreToldOf) {
  call(0, "x.0", {0, 1}, 4, FlightEntry::RUNNING);
  call(1, "x.0", {0, 1}, 3, FlightEntry::DONE);
  call(1, "y.0", {0, 1}, 7, FlightEntry::RUNNING);
  call(0, "y.0", {0, 1}, 6, FlightEntry::DONE);
  const HangVerdict verdict = find_cause(gang_);
  EXPECT_FALSE(verdict.named);
  EXPECT_THAT(verdict.message, HasSubstr("the ranks wait for each other"));
}

TEST_F(HangTest, ARankAloneIsNamed) {
  record(0);
  rank(0).pace.set_silent_seconds(62);
  EXPECT_TRUE(find_cause(gang_).named);
  EXPECT_EQ(find_cause(gang_).message, "has got nowhere for 62 s behind step 11");
}

TEST_F(HangTest, SilenceIsJudgedByTheSlowestStepAndByWhatRanksAreAt) {
  v1::RestartSpec restart;
  rank(0);
  rank(1).pace.set_silent_seconds(59.9);
  EXPECT_DOUBLE_EQ(silence_allowed(restart, gang_), 60);
  EXPECT_FALSE(hangs(restart, gang_));
  rank(1).pace.set_silent_seconds(60);
  EXPECT_TRUE(hangs(restart, gang_));
  rank(0).pace.set_slowest_seconds(13);  // Of any rank: they step together.
  EXPECT_FALSE(hangs(restart, gang_));
  rank(1).pace.set_silent_seconds(65);
  EXPECT_TRUE(hangs(restart, gang_));

  // Who waits for one that saves or starts is as silent.
  rank(0).pace.set_activity(v1::RankPace::SAVING);
  EXPECT_FALSE(hangs(restart, gang_));
  rank(0).pace.set_activity(v1::RankPace::STARTING);
  EXPECT_FALSE(hangs(restart, gang_));
  rank(1).pace.set_silent_seconds(600);
  EXPECT_TRUE(hangs(restart, gang_));
  rank(0).pace.set_activity(v1::RankPace::EVALUATING);
  restart.set_hang_seconds(5);
  rank(0).pace.set_slowest_seconds(0.1);
  rank(1).pace.set_silent_seconds(5);
  EXPECT_TRUE(hangs(restart, gang_));
  // A rank without a flight file has not begun before its first step.
  rank(1).pace.set_activity(v1::RankPace::ACTIVITY_UNSPECIFIED);
  rank(1).pace.set_step(0);
  EXPECT_FALSE(hangs(restart, gang_));
  rank(1).pace.set_step(1);
  EXPECT_TRUE(hangs(restart, gang_));
}

}  // namespace
}  // namespace telar::server::jobs
