#include "worker/engine/account.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace telar::engine {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Field;

enum : uint32_t { kCompute, kWorld, kDp, kPp, kCopyOut };

TracedOp op(uint32_t lane, Phase phase, double start, double stop, const char* comm = "", double bytes = 0) {
  const std::string kind = comm;
  return {.name = "op",
          .phase = phase,
          .lane = lane,
          .bytes = bytes,
          .receives = kind == "recv",
          .comm = kind,
          .start = start,
          .stop = stop};
}

Trace trace_of(std::vector<TracedOp> ops, double seconds = 10) {
  return {.seconds = seconds,
          .lanes = {{"compute", LaneKind::kCompute},
                    {"world", LaneKind::kComm},
                    {"dp", LaneKind::kComm},
                    {"pp01", LaneKind::kComm},
                    {"copy_out", LaneKind::kCopyOut}},
          .ops = std::move(ops)};
}

double part(const Account& account, Part part) { return account.parts[static_cast<size_t>(part)]; }
double sum(const Account& account) { return std::accumulate(account.parts.begin(), account.parts.end(), 0.0); }

TEST(AccountTest, NothingIsAllIdle) {
  const Account account = account_of(trace_of({}));
  EXPECT_DOUBLE_EQ(part(account, Part::kIdle), 10);
  EXPECT_DOUBLE_EQ(account.pipeline.window, 0);
}

TEST(AccountTest, ComputationHidesWhatRunsBesideIt) {
  // compute  FFFF..BBBB
  // dp       ..GGGGGG..    a gradient's reduction: 2 of 6 seconds show
  // copy     ....CCCC..    hidden by either
  const Account account =
      account_of(trace_of({op(kCompute, Phase::kForward, 0, 4), op(kDp, Phase::kGradComm, 2, 8, "all_reduce", 64),
                           op(kCopyOut, Phase::kForward, 4, 8), op(kCompute, Phase::kBackward, 6, 10)}));
  EXPECT_DOUBLE_EQ(part(account, Part::kForward), 4);
  EXPECT_DOUBLE_EQ(part(account, Part::kBackward), 4);
  EXPECT_DOUBLE_EQ(part(account, Part::kGradComm), 2);
  EXPECT_DOUBLE_EQ(waiting_share(account), 0.2);
  EXPECT_DOUBLE_EQ(part(account, Part::kCopy), 0);
  EXPECT_DOUBLE_EQ(part(account, Part::kIdle), 0);
  ASSERT_EQ(account.comm.size(), 1u);
  EXPECT_EQ(account.comm[0].lane, kDp);
  EXPECT_EQ(account.comm[0].calls, 1u);
  EXPECT_DOUBLE_EQ(account.comm[0].bytes, 64);
  EXPECT_DOUBLE_EQ(account.comm[0].seconds, 6);
}

TEST(AccountTest, AReceiveWaitsForItsSenderAndThenForTheWire) {
  // The second takes 1 second, so that of the first's 4 three were waiting.
  const Account account =
      account_of(trace_of({op(kPp, Phase::kPipelineComm, 0, 4, "recv", 8), op(kCompute, Phase::kForward, 4, 6),
                           op(kPp, Phase::kPipelineComm, 6, 7, "recv", 8), op(kCompute, Phase::kForward, 7, 10)}));
  EXPECT_DOUBLE_EQ(part(account, Part::kPipelineWait), 3);
  EXPECT_DOUBLE_EQ(part(account, Part::kPipelineWire), 2);
  EXPECT_THAT(account.comm, ElementsAre(Field(&CommUse::calls, 2)));
  // So does a send that takes less; another size has another wire time.
  const Account other = account_of(
      trace_of({op(kPp, Phase::kPipelineComm, 0, 4, "recv", 8), op(kPp, Phase::kPipelineComm, 4, 4.5, "send", 8),
                op(kPp, Phase::kPipelineComm, 4.5, 5, "recv", 1)},
               5));
  EXPECT_DOUBLE_EQ(part(other, Part::kPipelineWait), 3.5);
  EXPECT_DOUBLE_EQ(part(other, Part::kPipelineWire), 1.5);
}

TEST(AccountTest, ThePipelinesWindowIsWhereRanksMeet) {
  // world    WW................W     counting targets; the sum of squares
  // pp01     ..RRRR..R..r.......     6-8 F, 9-10 F, 12-14 B, 15-17 B
  std::vector<TracedOp> ops = {op(kWorld, Phase::kOther, 0, 2, "all_reduce"),
                               op(kPp, Phase::kPipelineComm, 2, 6, "recv", 8),
                               op(kCompute, Phase::kForward, 6, 8),
                               op(kPp, Phase::kPipelineComm, 8, 9, "recv", 8),
                               op(kCompute, Phase::kForward, 9, 10),
                               op(kPp, Phase::kPipelineComm, 10, 12, "recv", 8),
                               op(kCompute, Phase::kBackward, 12, 14),
                               op(kCompute, Phase::kBackward, 15, 17),
                               op(kWorld, Phase::kOptimizer, 17, 19, "all_reduce"),
                               op(kCompute, Phase::kOptimizer, 19, 20)};
  const Account account = account_of(trace_of(ops, 20));
  EXPECT_DOUBLE_EQ(account.pipeline.window, 17);
  EXPECT_DOUBLE_EQ(account.pipeline.warmup_idle, 3 + 1) << "the receives at 2 and 10, but for a second of wire each";
  EXPECT_DOUBLE_EQ(account.pipeline.steady_idle, 0);
  EXPECT_DOUBLE_EQ(account.pipeline.cooldown_idle, 1 + 2) << "between the backwards, and until all meet";
  EXPECT_DOUBLE_EQ(part(account, Part::kGangWait), 4);
  EXPECT_DOUBLE_EQ(sum(account), 20);
}

TEST(AccountTest, PartsOfAnyTraceSumToItsTime) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> time(-1, 12);
  for (int round = 0; round < 200; ++round) {
    std::vector<TracedOp> ops;
    for (int i = 0; i < 30; ++i) {
      const double a = time(random), b = time(random);
      const auto lane = static_cast<uint32_t>(random() % 5);
      const auto phase = static_cast<Phase>(random() % (static_cast<unsigned>(Phase::kOther) + 1));
      ops.push_back(op(lane, phase, std::min(a, b), std::max(a, b), lane == kPp ? "recv" : "",
                       static_cast<double>(random() % 3)));
    }
    const Account account = account_of(trace_of(ops));
    EXPECT_THAT(sum(account), DoubleNear(10, 1e-9));
    const PipelineUse& pipeline = account.pipeline;
    EXPECT_LE(pipeline.warmup_idle + pipeline.steady_idle + pipeline.cooldown_idle,
              part(account, Part::kPipelineWait) + part(account, Part::kGangWait) + part(account, Part::kIdle) + 1e-9);
  }
}

}  // namespace
}  // namespace telar::engine
