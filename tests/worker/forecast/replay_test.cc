#include "worker/forecast/replay.h"

#include <gtest/gtest.h>

namespace telar::forecast {
namespace {

using engine::LaneKind;
using engine::OpId;
using engine::Phase;

size_t at(Phase phase) { return static_cast<size_t>(phase); }

// A rank with a compute lane (0) and a lane of transfers (1).
struct RankBuilder {
  PaperRank rank{.lanes = {{LaneKind::kCompute, 0}, {LaneKind::kComm, 0}}};
  OpId add(uint32_t lane, double seconds, Phase phase, std::vector<OpId> waits = {}) {
    PaperOp op{.seconds = seconds, .lane = lane, .phase = phase};
    op.first_wait = static_cast<uint32_t>(rank.waits.size());
    op.waits = static_cast<uint32_t>(waits.size());
    rank.waits.insert(rank.waits.end(), waits.begin(), waits.end());
    rank.ops.push_back(op);
    return static_cast<OpId>(rank.ops.size() - 1);
  }
  PaperOp& last() { return rank.ops.back(); }
};

TEST(ReplayTest, TransfersHideBehindWhatDoesNotNeedThem) {
  RankBuilder one;
  const OpId first = one.add(0, 1.0, Phase::kBackward);
  const OpId sent = one.add(1, 3.0, Phase::kGradComm, {first});
  one.add(0, 2.0, Phase::kBackward);
  one.add(0, 0.5, Phase::kOptimizer, {sent});
  const auto times = replay({one.rank});
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_DOUBLE_EQ(times->step, 4.5);
  EXPECT_DOUBLE_EQ(times->ranks[0].busy[at(Phase::kBackward)], 3.0);
  EXPECT_DOUBLE_EQ(times->ranks[0].waiting[at(Phase::kGradComm)], 1.0);
}

TEST(ReplayTest, WhatIsAtTheEndIsWaitedForByNobodyButTheStep) {
  RankBuilder one;
  const OpId first = one.add(0, 1.0, Phase::kBackward);
  one.add(1, 3.0, Phase::kGradComm, {first});
  const auto times = replay({one.rank});
  ASSERT_TRUE(times.ok());
  EXPECT_DOUBLE_EQ(times->step, 4.0);
  EXPECT_DOUBLE_EQ(times->ranks[0].waiting[at(Phase::kGradComm)], 3.0);
}

TEST(ReplayTest, ComputeIsSlowerBesideTransfers) {
  RankBuilder one;
  one.add(1, 4.0, Phase::kGradComm);
  one.last().slowdown = 0.25f;
  one.add(0, 2.0, Phase::kForward);
  one.add(0, 4.0, Phase::kForward);  // Half of it beside.
  const auto times = replay({one.rank});
  ASSERT_TRUE(times.ok());
  EXPECT_DOUBLE_EQ(times->step, 2.0 + 0.5 + 4.0 + 0.5);
}

TEST(ReplayTest, ATransferThatIsAKernelWaitsForTheOneThatRuns) {
  for (const bool waits : {false, true}) {
    RankBuilder one;
    const OpId first = one.add(0, 1.0, Phase::kForward);
    const OpId copied = one.add(1, 0.5, Phase::kTensorComm, {first});
    one.add(1, 1.0, Phase::kTensorComm, {copied});  // Ready in the middle of the second.
    one.last().waits_for_kernel = waits;
    one.add(0, 2.0, Phase::kForward);
    const auto times = replay({one.rank});
    ASSERT_TRUE(times.ok());
    EXPECT_DOUBLE_EQ(times->step, waits ? 4.0 : 3.0);
  }
}

// Rank 0 sends what it computed to rank 1: a pipeline of two.
TEST(ReplayTest, RanksMeetWhereTheirStagesDo) {
  RankBuilder sender, receiver;
  for (RankBuilder* rank : {&sender, &receiver}) rank->rank.meetings = {"flow"};
  const OpId made = sender.add(0, 2.0, Phase::kForward);
  sender.add(1, 0.5, Phase::kPipelineComm, {made});
  sender.last().meeting = 0;
  const OpId got = receiver.add(1, 0.25, Phase::kPipelineComm);
  receiver.last().meeting = 0;
  receiver.add(0, 3.0, Phase::kForward, {got});
  const auto times = replay({sender.rank, receiver.rank});
  ASSERT_TRUE(times.ok());
  EXPECT_DOUBLE_EQ(times->step, 5.5);  // The longer of both sides' times counts.
  EXPECT_DOUBLE_EQ(times->ranks[1].waiting[at(Phase::kPipelineComm)], 2.5);
  EXPECT_DOUBLE_EQ(times->ranks[0].waiting[at(Phase::kPipelineComm)], 3.5);
  for (const PaperTimes::Rank& rank : times->ranks) {
    double all = 0;
    for (size_t i = 0; i < kPhases; ++i) all += rank.busy[i] + rank.waiting[i];
    EXPECT_DOUBLE_EQ(all, times->step);
  }
}

TEST(ReplayTest, RanksThatDoNotMeetAreAnError) {
  RankBuilder sender, receiver;
  for (RankBuilder* rank : {&sender, &receiver}) rank->rank.meetings = {"flow"};
  sender.add(1, 0.5, Phase::kPipelineComm);
  sender.last().meeting = 0;
  const auto times = replay({sender.rank, receiver.rank});
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.status().code(), absl::StatusCode::kInternal);
}

TEST(ReplayTest, AHigherClockShortensWhatItCan) {
  RankBuilder one;
  one.add(0, 4.0, Phase::kForward);
  one.last().least = 1.0;
  one.add(0, 2.0, Phase::kForward);  // Bound by memory.
  one.last().least = 2.0;
  one.add(1, 1.0, Phase::kGradComm, {1});
  one.last().least = 1.0;
  const auto times = replay({one.rank}, {2.0});
  ASSERT_TRUE(times.ok());
  EXPECT_DOUBLE_EQ(times->step, 2.0 + 2.0 + 1.0);
  EXPECT_DOUBLE_EQ(replay({one.rank}, {8.0})->step, 1.0 + 2.0 + 1.0);
}

}  // namespace
}  // namespace telar::forecast
