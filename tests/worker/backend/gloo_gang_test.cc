// Many groups of one rank over one mesh: none waits for another, and all end when one has failed.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/delaying_communicator.h"
#include "tests/worker/backend/gloo_group.h"

namespace telar::backend::cpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// By name.
using Groups = std::map<std::string, Communicator*>;
using RankBody = std::function<void(const Groups&, int rank)>;

// Runs `body` once a rank, on a thread with the communicators of those of `groups` that it is in.
void run_gang(int size, const std::vector<Group>& groups, const RankBody& body,
              std::chrono::milliseconds call_timeout = std::chrono::seconds(60)) {
  fakes::InProcessStore store;
  std::barrier all_connected(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<Group> mine;
      std::ranges::copy_if(groups, std::back_inserter(mine),
                           [&](const Group& group) { return std::ranges::count(group.ranks, rank) > 0; });
      auto made = create_gloo_communicators(
          store, {.rank = rank, .listen_host = "127.0.0.1", .call_timeout = call_timeout}, mine);
      all_connected.arrive_and_wait();
      ASSERT_TRUE(made.ok()) << made.status();
      Groups by_name;
      for (size_t i = 0; i < mine.size(); ++i) by_name[mine[i].name] = (*made)[i].get();
      body(by_name, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The groups of eight ranks with two tensor, two pipeline and two data ranks, as many as there can be.
std::vector<Group> groups_of_eight() {
  std::vector<Group> groups = {{"world", first_ranks(8)}};
  const auto add = [&](const std::string& name, std::vector<int> ranks) {
    groups.push_back({name + std::to_string(ranks[0]), std::move(ranks)});
  };
  for (int rank : {0, 2, 4, 6}) add("tensor.", {rank, rank + 1});
  for (int rank : {0, 1, 4, 5}) add("reduce.", {rank, rank + 2});
  for (int rank : {0, 1, 4, 5}) add("gather.", {rank, rank + 2});
  for (int rank : {0, 1, 2, 3}) add("tied.", {rank, rank + 4});
  for (int rank : {0, 1, 2, 3}) add("down.", {rank, rank + 4});
  for (int rank : {0, 1, 2, 3}) add("up.", {rank + 4, rank});
  return groups;
}

TEST(GlooGang, EightRanksWithAllTheirGroupsAreMadeInASecond) {
  const auto begin = std::chrono::steady_clock::now();
  run_gang(8, groups_of_eight(), [](const Groups& groups, int) { EXPECT_EQ(groups.size(), 7u); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

// Every group of a rank from a thread of its own, as the lanes of a step do.
TEST(GlooGang, AllGroupsOfARankWorkAtOnce) {
  const std::vector<Group> all = groups_of_eight();
  run_gang(8, all, [&](const Groups& groups, int rank) {
    std::vector<std::thread> lanes;
    for (const Group& group : all) {
      if (!groups.contains(group.name)) continue;
      lanes.emplace_back([&, group] {
        Communicator& communicator = *groups.at(group.name);
        NoStream stream;
        const int base = static_cast<int>(group.name.size());
        int sum = base * communicator.size();
        for (int member : group.ranks) sum += member;
        for (int call = 0; call < 60; ++call) {
          std::vector<int32_t> x(call % 10 == 0 ? 100000 : 10, base + rank);
          ASSERT_EQ(communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))), absl::OkStatus());
          ASSERT_EQ(x.front(), sum);
          ASSERT_EQ(x.back(), sum);
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
  });
}

// Rank 1 comes to group "late" only when rank 0 has finished what it does in group "busy" meanwhile.
TEST(GlooGang, AGroupThatWaitsForAPeerHoldsUpNoOther) {
  for (int64_t count : {10, 2000000}) {
    std::atomic<bool> done{false};
    run_gang(2, {{"late", {0, 1}}, {"busy", {0, 1}}}, [&](const Groups& groups, int rank) {
      NoStream stream;
      std::vector<float> mine(count, 1.0f);
      std::thread waiting;
      if (rank == 0) {
        waiting = std::thread([&] {
          EXPECT_EQ(groups.at("late")->all_reduce(stream, ReduceOp::kSum, InOut(view_of(mine))), absl::OkStatus());
          EXPECT_TRUE(done);
        });
      }
      for (int call = 0; call < 20; ++call) {
        std::vector<float> x(count, 1.0f);
        ASSERT_EQ(groups.at("busy")->all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))), absl::OkStatus());
      }
      ASSERT_EQ(groups.at("busy")->barrier(), absl::OkStatus());
      if (rank == 0) {
        done = true;
        done.notify_all();
        waiting.join();
      } else {
        done.wait(false);
        EXPECT_EQ(groups.at("late")->all_reduce(stream, ReduceOp::kSum, InOut(view_of(mine))), absl::OkStatus());
      }
      EXPECT_EQ(mine.back(), 2.0f);
    });
  }
}

// The same with a send that nobody receives yet: its bytes must not sit in front of those of another group.
TEST(GlooGang, ASendWithoutItsReceiveHoldsUpNoOther) {
  std::atomic<bool> done{false};
  run_gang(2, {{"down", {0, 1}}, {"up", {1, 0}}}, [&](const Groups& groups, int rank) {
    NoStream stream;
    std::vector<float> big(3000000, static_cast<float>(rank)), small(100, static_cast<float>(rank));
    if (rank == 0) {
      std::thread sender([&] {
        EXPECT_EQ(groups.at("down")->send(stream, 1, In(view_of(big))), absl::OkStatus());
        EXPECT_TRUE(done);
      });
      ASSERT_EQ(groups.at("up")->recv(stream, 0, Out(view_of(small))), absl::OkStatus());
      EXPECT_EQ(small[99], 1.0f);
      done = true;
      done.notify_all();
      sender.join();
    } else {
      ASSERT_EQ(groups.at("up")->send(stream, 1, In(view_of(small))), absl::OkStatus());
      done.wait(false);
      ASSERT_EQ(groups.at("down")->recv(stream, 0, Out(view_of(big))), absl::OkStatus());
      EXPECT_EQ(big.back(), 0.0f);
    }
  });
}

// Two pipeline neighbours, each with a thread a direction, in both directions of each group.
TEST(GlooGang, NeighboursSendBothWaysAtOnce) {
  run_gang(2, {{"down", {0, 1}}, {"up", {1, 0}}}, [&](const Groups& groups, int rank) {
    const auto talk = [&](Communicator& communicator) {
      NoStream stream;
      const int self = communicator.rank(), peer = 1 - self;
      for (int64_t count : {1, 1000, 65537, 500000}) {
        for (int turn = 0; turn < 4; ++turn) {  // Ends of one communicator take turns: a send waits for its recv.
          std::vector<int32_t> x(count, 10 * turn + self);
          if (turn % 2 == self) {
            ASSERT_EQ(communicator.send(stream, peer, In(view_of(x))), absl::OkStatus());
          } else {
            ASSERT_EQ(communicator.recv(stream, peer, Out(view_of(x))), absl::OkStatus());
            EXPECT_EQ(x, std::vector<int32_t>(count, 10 * turn + peer));
          }
        }
      }
    };
    std::thread down(talk, std::ref(*groups.at("down")));
    talk(*groups.at("up"));
    down.join();
    (void)rank;
  });
}

// A failure in one group ends the calls of the others on this rank and, through its connections, on its peers.
TEST(GlooGang, AFailureOfOneGroupEndsTheOthersAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  run_gang(3, {{"world", {0, 1, 2}}, {"a", {0, 1}}, {"b", {0, 2}}}, [&](const Groups& groups, int rank) {
    NoStream stream;
    std::vector<float> x(10), y(10);
    if (rank == 2) {  // Waits for rank 0, which never comes to b.
      const absl::Status status = groups.at("b")->all_reduce(stream, ReduceOp::kSum, InOut(view_of(x)));
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("communicator 'b', all_reduce, rank 1 of 2: with rank 0"));
      return;
    }
    if (rank == 1) {
      EXPECT_FALSE(groups.at("world")->all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))).ok());
      EXPECT_FALSE(groups.at("a")->barrier().ok());
      return;
    }
    std::thread waiting([&] {  // Waits for rank 2, which never comes to world.
      const absl::Status status = groups.at("world")->all_reduce(stream, ReduceOp::kSum, InOut(view_of(x)));
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("communicator 'world', all_reduce, rank 0 of 3: given up because of "),
                        HasSubstr("communicator 'a', all_gather, rank 0 of 2: y: 10 elements, wanted 2 * 10")));
    });
    EXPECT_FALSE(groups.at("a")->all_gather(stream, In(view_of(y)), Out(view_of(y))).ok());
    waiting.join();
    const absl::Status late = groups.at("b")->barrier();
    EXPECT_THAT(std::string(late.message()), HasSubstr("communicator 'b', barrier, rank 0 of 2: given up because of "));
    EXPECT_EQ(groups.at("b")->barrier(), late);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(GlooGang, ADeadlineOfOneGroupNamesItInTheOthers) {
  std::barrier end(2);
  run_gang(
      2, {{"a", {0, 1}}, {"b", {1, 0}}},
      [&](const Groups& groups, int rank) {
        NoStream stream;
        std::vector<float> x(10);
        if (rank == 0) {
          const absl::Status status = groups.at("b")->recv(stream, 0, Out(view_of(x)));
          EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("communicator 'b', send/recv, rank 1 of 2: with rank 0, rank 1 of the gang: "));
          const absl::Status other = groups.at("a")->barrier();
          EXPECT_EQ(other.code(), absl::StatusCode::kDeadlineExceeded) << other;
          EXPECT_THAT(std::string(other.message()), HasSubstr("given up because of communicator 'b', send/recv"));
        }
        end.arrive_and_wait();
      },
      std::chrono::milliseconds(300));
}

TEST(GlooGang, ARankThatDoesNotKnowOfTheGroupIsNamed) {
  fakes::InProcessStore store;
  std::vector<std::thread> threads;
  const std::vector<std::vector<Group>> groups = {{{"a", {0, 1}}, {"c", {0, 2}}}, {{"a", {0, 1}}}, {{"b", {2, 1}}}};
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status status =
          create_gloo_communicators(
              store, {.rank = rank, .listen_host = "127.0.0.1", .connect_timeout = std::chrono::milliseconds(500)},
              groups[rank])
              .status();
      // Rank 1 has all that it asked for, unless rank 0, which has not, hangs up before it sees that.
      if (rank != 1) {
        EXPECT_FALSE(status.ok()) << rank;
      }
      if (rank == 2) {
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("connect, rank 2: rank 1 has no group with rank 2, which has one with it"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Ranks at any pace: lanes of a rank are threads, and each group's calls come late at random.
TEST(GlooGang, LateCallsChangeNothing) {
  const std::vector<Group> all = groups_of_eight();
  std::mutex mutex;
  std::map<uint64_t, std::vector<std::chrono::microseconds>> pauses;  // Of rank 0, by run.
  for (uint64_t run = 0; run < 3; ++run) {
    const uint64_t seed = run / 2;
    run_gang(8, all, [&](const Groups& groups, int rank) {
      std::vector<Communicator*> prompt;
      for (const auto& [name, communicator] : groups) prompt.push_back(communicator);
      fakes::Delays delays{.seed = seed, .chance = 0.5, .longest = std::chrono::microseconds(300)};
      delays.pause = [&, rank](std::chrono::microseconds time) {
        if (rank == 0) {
          const std::lock_guard lock(mutex);
          pauses[run].push_back(time);
        }
        std::this_thread::sleep_for(time);
      };
      const auto late = fakes::delayed(prompt, delays, rank);
      // Rank 0 in one thread, so that its pauses have an order; the others with a thread a group.
      std::vector<std::thread> lanes;
      NoStream stream;
      const auto work = [&](size_t group, int call) {
        std::vector<int32_t> x(call == 7 ? 70000 : 3, 1);
        ASSERT_EQ(late[group]->all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))), absl::OkStatus());
        ASSERT_EQ(x.back(), late[group]->size());
      };
      for (size_t group = 0; group < late.size() && rank != 0; ++group) {
        lanes.emplace_back([&, group] {
          for (int call = 0; call < 10; ++call) work(group, call);
        });
      }
      for (int call = 0; call < 10 && rank == 0; ++call) {
        for (size_t group = 0; group < late.size(); ++group) work(group, call);
      }
      for (std::thread& lane : lanes) lane.join();
    });
  }
  EXPECT_GT(pauses[0].size(), 10u);
  EXPECT_EQ(pauses[0], pauses[1]);  // One seed.
  EXPECT_NE(pauses[0], pauses[2]);
}

// The bits of a sum do not depend on the call or on whether results go back to where the inputs were.
template <typename T>
void check_in_place(int size) {
  run_gang(size, {{"world", first_ranks(size)}}, [&](const Groups& groups, int rank) {
    Communicator& communicator = *groups.at("world");
    NoStream stream;
    for (int64_t part : {1, 5, 8192, 30001, 300007}) {
      std::mt19937 generator(static_cast<uint32_t>(part * 100 + rank));
      std::vector<T> x(part * size);
      for (T& value : x) value = T(static_cast<float>(generator()) / 65536.0f - 32768.0f);
      std::vector<T> sum = x, y(part);
      ASSERT_EQ(communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(sum))), absl::OkStatus());
      ASSERT_EQ(communicator.reduce_scatter(stream, ReduceOp::kSum, In(view_of(x)), Out(view_of(y))), absl::OkStatus());
      EXPECT_EQ(std::memcmp(y.data(), sum.data() + rank * part, part * sizeof(T)), 0) << part;
      View slice = view_of(x);
      slice.shape = Shape{part};
      slice.data += rank * part * static_cast<int64_t>(sizeof(T));
      ASSERT_EQ(communicator.reduce_scatter(stream, ReduceOp::kSum, In(view_of(x)), Out(slice)), absl::OkStatus());
      EXPECT_EQ(std::memcmp(slice.data, y.data(), part * sizeof(T)), 0) << part;
      ASSERT_EQ(communicator.all_gather(stream, In(slice), Out(view_of(x))), absl::OkStatus());
      EXPECT_EQ(std::memcmp(x.data(), sum.data(), x.size() * sizeof(T)), 0) << part;
    }
  });
}

class GlooInPlace : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooInPlace, ::testing::Values(1, 2, 3, 8));
TEST_P(GlooInPlace, F32) { check_in_place<float>(GetParam()); }
TEST_P(GlooInPlace, Bf16) { check_in_place<Bf16>(GetParam()); }
TEST_P(GlooInPlace, F16) { check_in_place<F16>(GetParam()); }

}  // namespace
}  // namespace telar::backend::cpu
