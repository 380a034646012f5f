#include "worker/engine/comm_check.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/fakes/key_value_store.h"
#include "tests/worker/engine/testing.h"
#include "worker/engine/digest.h"

namespace telar::engine {
namespace {

using backend::Communicator;
using backend::ReduceOp;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kComputeLane;
using testing::mix;
using testing::read;
using testing::update;
using testing::write;

// Ranks 0 and 1 in one group "pair" of which all calls are.
struct Job {
  Program programs[2];
  absl::Status check(CommOrder order) const {
    const std::vector<CommGroup> groups = {{"pair", {0, 1}}, {"other", {1, 0}}};
    const std::vector<RankProgram> ranks = {{&programs[0], {0, 1}}, {&programs[1], {0, 1}}};
    return check_comm(ranks, groups, order);
  }
  std::string said(CommOrder order) const { return std::string(check(order).message()); }
};

Tensor floats(Program& program, int64_t count) {
  return program.persistent("x", DType::kF32, {count}, MemoryClass::kGrads);
}
OpId reduce(Program& program, const std::string& name, int64_t count, GroupId group = 0,
            ReduceOp how = ReduceOp::kSum) {
  return program.record(name, group, &Communicator::all_reduce, how, floats(program, count).inout());
}
OpId send(Program& program, const std::string& name, int peer, const Tensor& x, GroupId group = 0) {
  return program.record(name, group, &Communicator::send, peer, x.in());
}
OpId recv(Program& program, const std::string& name, int peer, const Tensor& x, GroupId group = 0) {
  return program.record(name, group, &Communicator::recv, peer, x.out());
}

TEST(CommCallTest, IsReadOffTheCall) {
  Program program;
  const Tensor x = program.persistent("x", DType::kBF16, {8, 2}, MemoryClass::kGrads);
  const Tensor y = program.persistent("y", DType::kBF16, {4}, MemoryClass::kGrads);
  program.record("", 0, &Communicator::all_reduce, ReduceOp::kMax, x.inout());
  program.record("", 1, &Communicator::all_gather, y.in(), x.out());
  program.record("", 1, &Communicator::reduce_scatter, ReduceOp::kSum, x.in(), y.out());
  program.record("", 1, &Communicator::broadcast, 3, y.inout());
  program.record("", 1, &Communicator::send, 2, y.in());
  program.record("", 2, &Communicator::recv, 0, y.out());
  const char* const expected[] = {
      "all_reduce(max) of 16 bf16", "all_gather of 4 bf16", "reduce_scatter(sum) of 16 bf16",
      "broadcast from 3 of 4 bf16", "send to 2 of 4 bf16",  "recv from 0 of 4 bf16"};
  for (OpId op = 0; op < 6; ++op) EXPECT_EQ(program.ops()[op].comm->to_string(), expected[op]);
  EXPECT_EQ(program.ops()[0].comm->group, 0u);
  EXPECT_EQ(program.ops()[5].comm->group, 2u);
  EXPECT_EQ(program.ops()[1].comm->bytes(), 8u);
  program.record("", 2, &Communicator::exchange, 0, y.in(), 1, y.out());
  EXPECT_EQ(program.ops()[6].comm->to_string(), "exchange to 0 from 1 of 4 bf16");
  program.record("", &backend::Kernels::fill, 0.0f, y.out());
  EXPECT_FALSE(program.ops()[7].comm.has_value());
}

TEST(CommCheckTest, EqualSequencesPass) {
  Job job;
  for (Program& program : job.programs) {
    reduce(program, "a", 8);
    reduce(program, "b", 4, 1);
    reduce(program, "c", 2);
  }
  EXPECT_TRUE(job.check(CommOrder::kLanes).ok());
  EXPECT_TRUE(job.check(CommOrder::kList).ok());
}

TEST(CommCheckTest, OtherSizesKindsAndNumbersAreNamed) {
  Job sizes;
  reduce(sizes.programs[0], "a", 8);
  reduce(sizes.programs[1], "b", 9);
  EXPECT_EQ(sizes.said(CommOrder::kLanes),
            "group 'pair', collective 0: rank 0 'a' all_reduce(sum) of 8 f32, but rank 1 'b' all_reduce(sum) of 9 f32");
  Job kinds;
  reduce(kinds.programs[0], "a", 8);
  reduce(kinds.programs[1], "b", 8, 0, ReduceOp::kMax);
  EXPECT_THAT(kinds.said(CommOrder::kLanes), HasSubstr("all_reduce(max)"));
  Job numbers;
  reduce(numbers.programs[1], "b", 8);
  EXPECT_EQ(numbers.said(CommOrder::kLanes), "group 'pair': rank 0 makes 0 collectives, rank 1 1");
}

TEST(CommCheckTest, MessagesNeedTheirOtherHalf) {
  Job job;
  send(job.programs[0], "out", 1, floats(job.programs[0], 8));
  EXPECT_EQ(job.said(CommOrder::kLanes), "group 'pair': rank 0 'out' send to 1 of 8 f32 is never received");
  recv(job.programs[1], "in", 0, floats(job.programs[1], 4));
  EXPECT_THAT(job.said(CommOrder::kLanes), AllOf(HasSubstr("'out' send to 1 of 8 f32"), HasSubstr("recv from 0 of 4")));
  Job alone;
  recv(alone.programs[0], "in", 1, floats(alone.programs[0], 4));
  EXPECT_THAT(alone.said(CommOrder::kLanes), HasSubstr("is never sent"));
  Job self;
  send(self.programs[0], "out", 0, floats(self.programs[0], 8));
  EXPECT_THAT(self.said(CommOrder::kLanes), HasSubstr("no such peer in group 'pair'"));
}

OpId exchange(Program& program, const std::string& name, int to, int from, int64_t count = 8) {
  return program.record(name, 0, &Communicator::exchange, to, floats(program, count).in(), from,
                        floats(program, count).out());
}

TEST(CommCheckTest, ExchangesAreNobodysTurnToBegin) {
  const std::vector<CommGroup> groups = {{"ring", {0, 1, 2}}};
  for (const bool exchanges : {true, false}) {
    Program programs[3];
    std::vector<RankProgram> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      Program& program = programs[rank];
      for (const int distance : {1, 2}) {
        const int to = (rank + distance) % 3, from = (rank + 3 - distance) % 3;
        if (exchanges) {
          exchange(program, "x", to, from);
        } else {
          send(program, "s", to, floats(program, 8));
          recv(program, "r", from, floats(program, 8));
        }
      }
      ranks.push_back({&program, {0}});
    }
    EXPECT_EQ(check_comm(ranks, groups, CommOrder::kLanes).ok(), exchanges);
    EXPECT_EQ(check_comm(ranks, groups, CommOrder::kList).ok(), exchanges);
    for (int rank = 0; exchanges && rank < 3; ++rank) {
      const CommDigest own = digest(programs[rank], 0, rank, 3);
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        const CommDigest other = digest(programs[peer], 0, peer, 3);
        EXPECT_EQ(own.peers[static_cast<size_t>(peer)], other.peers[static_cast<size_t>(rank)]);
      }
    }
  }
}

TEST(CommCheckTest, AnExchangeNeedsBothItsHalves) {
  Job job;
  exchange(job.programs[0], "x", 1, 1);
  recv(job.programs[1], "in", 0, floats(job.programs[1], 8));
  EXPECT_EQ(job.said(CommOrder::kLanes), "group 'pair': rank 0 'x' exchange to 1 from 1 of 8 f32 is never sent");
  Job both;
  exchange(both.programs[0], "x", 1, 1);
  exchange(both.programs[1], "y", 0, 0);
  EXPECT_TRUE(both.check(CommOrder::kList).ok());
  EXPECT_EQ(digest(both.programs[0], 0, 0, 2).peers[1], digest(both.programs[1], 0, 1, 2).peers[0]);
  Job sizes;
  exchange(sizes.programs[0], "x", 1, 1, 4);
  exchange(sizes.programs[1], "y", 0, 0, 8);
  EXPECT_FALSE(sizes.check(CommOrder::kList).ok());
  EXPECT_NE(digest(sizes.programs[0], 0, 0, 2).peers[1], digest(sizes.programs[1], 0, 1, 2).peers[0]);
}

TEST(CommCheckTest, TwoGroupsInOppositeOrdersWaitForEachOtherInAListButNotOnLanes) {
  Job job;
  reduce(job.programs[0], "a0", 8, 0);
  reduce(job.programs[0], "b0", 8, 1);
  reduce(job.programs[1], "b1", 8, 1);
  reduce(job.programs[1], "a1", 8, 0);
  EXPECT_TRUE(job.check(CommOrder::kLanes).ok());
  EXPECT_THAT(job.said(CommOrder::kList), HasSubstr("ranks wait for each other, each for the next: "));
}

TEST(CommCheckTest, DependenciesThroughComputeCount) {
  Job job;
  for (int rank = 0; rank < 2; ++rank) {
    Program& program = job.programs[rank];
    const Tensor x = floats(program, 4), y = floats(program, 4);
    const auto first = static_cast<GroupId>(rank);  // One begins with "pair", one with "other".
    program.record("first", first, &Communicator::all_reduce, ReduceOp::kSum, x.inout());
    mix(program, "between", kComputeLane, {read(x), write(y)});
    program.record("second", 1 - first, &Communicator::all_reduce, ReduceOp::kSum, y.inout());
  }
  EXPECT_THAT(
      job.said(CommOrder::kLanes),
      HasSubstr("rank 0 'first' and rank 1 'second' -> rank 1 'between' -> rank 0 'second' and rank 1 'first' -> "));
}

// Both send first: with one communicator nobody ever receives; with one for each direction all is well.
TEST(CommCheckTest, TwoThatSendFirstOnOneLane) {
  for (const GroupId back : {0u, 1u}) {
    Job job;
    for (int rank = 0; rank < 2; ++rank) {
      Program& program = job.programs[rank];
      // In "other" the ranks change places.
      const auto peer = [&](GroupId group) { return group == 0 ? 1 - rank : rank; };
      const GroupId out = rank == 0 ? 0 : back, in = rank == 0 ? back : 0;
      send(program, "send", peer(out), floats(program, 4), out);
      recv(program, "recv", peer(in), floats(program, 4), in);
    }
    EXPECT_EQ(job.check(CommOrder::kLanes).ok(), back == 1) << job.check(CommOrder::kLanes);
    EXPECT_FALSE(job.check(CommOrder::kList).ok());
  }
}

TEST(CommCheckTest, AStrangerIsNamed) {
  Program program;
  reduce(program, "a", 8);
  const std::vector<CommGroup> groups = {{"dp", {1}}};
  const std::vector<RankProgram> ranks = {{&program, {0}}};
  EXPECT_THAT(std::string(check_comm(ranks, groups, CommOrder::kLanes).message()),
              HasSubstr("not a member of group 'dp'"));
}

// --- Digests ---

// FNV-1a of 0, 0, 0, 8, 0 (kind, root, reduction, elements, type); of nothing; of 1, 0, 4, 0 (collectives before,
// from).
TEST(DigestTest, IsStable) {
  Program program;
  reduce(program, "a", 8);
  send(program, "s", 1, floats(program, 4));
  EXPECT_EQ(digest(program, 0, 0, 2).to_string(), "2,b8c74c4d899f1e4d,cbf29ce484222325,cb3106715e405420");
}

TEST(DigestTest, NamesAndOtherGroupsDoNotMatter) {
  Program a, b;
  reduce(a, "a", 8);
  reduce(b, "elsewhere", 3, 1);
  reduce(b, "b", 8);
  EXPECT_EQ(digest(a, 0, 0, 2), digest(b, 0, 0, 2));
  EXPECT_NE(digest(a, 1, 0, 2), digest(b, 1, 0, 2));
}

TEST(DigestTest, OrderSizeTypeAndReductionDo) {
  const auto of = [](auto record) {
    Program program;
    record(program);
    return digest(program, 0, 0, 2).collectives;
  };
  const uint64_t base = of([](Program& p) {
    reduce(p, "a", 8);
    reduce(p, "b", 4);
  });
  EXPECT_NE(base, of([](Program& p) {
              reduce(p, "b", 4);
              reduce(p, "a", 8);
            }));
  EXPECT_NE(base, of([](Program& p) {
              reduce(p, "a", 8);
              reduce(p, "b", 4, 0, ReduceOp::kMax);
            }));
  EXPECT_NE(base, of([](Program& p) {
              reduce(p, "a", 8);
              p.record("b", 0, &Communicator::all_reduce, ReduceOp::kSum,
                       p.persistent("x", DType::kBF16, {4}, MemoryClass::kGrads).inout());
            }));
}

// What each of the ranks of a group that compare their digests gets.
std::vector<absl::Status> compared(const std::vector<Program>& programs) {
  fakes::InProcessStore store;
  std::vector<absl::Status> results(programs.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const CommDigest mine = digest(programs[rank], 0, static_cast<int>(rank), static_cast<int>(programs.size()));
      results[rank] = compare_digests(store, "pp", static_cast<int>(rank), mine, std::chrono::seconds(60));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Rank 0 sends two to rank 1, which answers; all reduce before and behind.
std::vector<Program> three_ranks() {
  std::vector<Program> programs(3);
  for (Program& program : programs) reduce(program, "before", 8);
  for (const int64_t count : {4, 6}) {
    send(programs[0], "s", 1, floats(programs[0], count));
    recv(programs[1], "r", 0, floats(programs[1], count));
  }
  send(programs[1], "back", 0, floats(programs[1], 2));
  recv(programs[0], "back", 1, floats(programs[0], 2));
  for (Program& program : programs) reduce(program, "behind", 8);
  return programs;
}

TEST(CompareDigestsTest, MirroredMessagesMatch) {
  for (const absl::Status& status : compared(three_ranks())) EXPECT_TRUE(status.ok()) << status;
}

TEST(CompareDigestsTest, WhoDiffersIsNamed) {
  std::vector<Program> programs = three_ranks();
  reduce(programs[2], "more", 1);
  const std::vector<absl::Status> results = compared(programs);
  for (const absl::Status& status : results) EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("communicator 'pp': its members 0 and 2 would make calls"));
}

TEST(CompareDigestsTest, AMessageOnTheOtherSideOfACollectiveIsFoundByItsTwoEnds) {
  std::vector<Program> programs = three_ranks();
  recv(programs[0], "late", 1, floats(programs[0], 3));
  reduce(programs[0], "last", 1);
  reduce(programs[1], "last", 1);
  send(programs[1], "late", 0, floats(programs[1], 3));
  reduce(programs[2], "last", 1);
  const std::vector<absl::Status> results = compared(programs);
  EXPECT_FALSE(results[0].ok());
  EXPECT_FALSE(results[1].ok());
  EXPECT_TRUE(results[2].ok());
}

}  // namespace
}  // namespace telar::engine
