#include "worker/backend/cpu/gloo_communicator.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/backend/gloo_group.h"
#include "worker/backend/cpu/gloo_reduce.h"

namespace telar::backend::cpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (std::is_same_v<T, int32_t>) {
      value = static_cast<int32_t>(generator());
    } else {
      value = T(static_cast<float>(generator()) / 65536.0f - 32768.0f);
    }
  }
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The reference: a plain loop over the ranks, bf16 and f16 in f32 with one rounding.
template <typename T>
std::vector<T> reduced(ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> result(inputs[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    if constexpr (std::is_same_v<T, int32_t>) {
      uint32_t sum = 0;
      int32_t max = std::numeric_limits<int32_t>::min();
      for (const auto& input : inputs) {
        sum += static_cast<uint32_t>(input[i]);
        max = std::max(max, input[i]);
      }
      result[i] = op == ReduceOp::kSum ? static_cast<int32_t>(sum) : max;
    } else {
      float sum = static_cast<float>(inputs[0][i]), max = sum;
      for (size_t rank = 1; rank < inputs.size(); ++rank) {
        sum += static_cast<float>(inputs[rank][i]);
        max = std::max(max, static_cast<float>(inputs[rank][i]));
      }
      result[i] = T(op == ReduceOp::kSum ? sum : max);
    }
  }
  return result;
}

// Around the edges of whole vectors, ranks, packets and chunks.
const std::vector<int64_t>& counts() {
  static const std::vector<int64_t> kCounts = {0, 1, 2, 3, 7, 63, 1000, 8192, 8193, 16385, 65537, 300001};
  return kCounts;
}

class GlooSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooSizes, ::testing::Values(1, 2, 3, 4, 8));

template <typename T>
void check_all_reduce(int size) {
  run_group(size, [&](Communicator& communicator, Stream& stream) {
    for (int64_t count : counts()) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        std::vector<std::vector<T>> inputs;
        for (int rank = 0; rank < size; ++rank) inputs.push_back(random_values<T>(count, 100 * count + rank));
        std::vector<T> x = inputs[communicator.rank()];
        ASSERT_EQ(communicator.all_reduce(stream, op, InOut(view_of(x))), absl::OkStatus());
        EXPECT_TRUE(same_bits(x, reduced(op, inputs))) << count << " elements, op " << static_cast<int>(op);
      }
    }
  });
}

TEST_P(GlooSizes, AllReduceEqualsALoopOverTheRanksInF32) { check_all_reduce<float>(GetParam()); }
TEST_P(GlooSizes, AllReduceEqualsALoopOverTheRanksInBf16) { check_all_reduce<Bf16>(GetParam()); }
TEST_P(GlooSizes, AllReduceEqualsALoopOverTheRanksInF16) { check_all_reduce<F16>(GetParam()); }
TEST_P(GlooSizes, AllReduceEqualsALoopOverTheRanksInI32) { check_all_reduce<int32_t>(GetParam()); }

template <typename T>
void check_gather_and_scatter(int size) {
  run_group(size, [&](Communicator& communicator, Stream& stream) {
    const int rank = communicator.rank();
    for (int64_t part : {0, 1, 3, 1001, 8192, 16385, 70001}) {
      std::vector<std::vector<T>> inputs;
      std::vector<T> whole;
      for (int member = 0; member < size; ++member) {
        inputs.push_back(random_values<T>(part * size, 7 * part + member));
        whole.insert(whole.end(), inputs[member].begin(), inputs[member].begin() + part);
      }
      std::vector<T> mine(inputs[rank].begin(), inputs[rank].begin() + part), gathered(part * size);
      ASSERT_EQ(communicator.all_gather(stream, In(view_of(mine)), Out(view_of(gathered))), absl::OkStatus());
      EXPECT_TRUE(same_bits(gathered, whole)) << part;

      const std::vector<T> sums = reduced(ReduceOp::kSum, inputs);
      std::vector<T> x = inputs[rank], y(part);
      ASSERT_EQ(communicator.reduce_scatter(stream, ReduceOp::kSum, In(view_of(x)), Out(view_of(y))), absl::OkStatus());
      EXPECT_TRUE(same_bits(y, std::vector<T>(sums.begin() + rank * part, sums.begin() + (rank + 1) * part))) << part;
      EXPECT_TRUE(same_bits(x, inputs[rank])) << part << ": reduce_scatter changed its input";
    }
  });
}

TEST_P(GlooSizes, GatherAndScatterF32) { check_gather_and_scatter<float>(GetParam()); }
TEST_P(GlooSizes, GatherAndScatterBf16) { check_gather_and_scatter<Bf16>(GetParam()); }
TEST_P(GlooSizes, GatherAndScatterF16) { check_gather_and_scatter<F16>(GetParam()); }
TEST_P(GlooSizes, GatherAndScatterI32) { check_gather_and_scatter<int32_t>(GetParam()); }

TEST_P(GlooSizes, GatherAndScatterInPlace) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, Stream& stream) {
    const int rank = communicator.rank();
    for (int64_t part : {5, 20000}) {
      std::vector<std::vector<float>> inputs;
      for (int member = 0; member < size; ++member) inputs.push_back(random_values<float>(part * size, member));
      std::vector<float> all = inputs[rank];
      View shard = view_of(all);
      shard.shape = Shape{part};
      shard.data += rank * part * sizeof(float);
      ASSERT_EQ(communicator.reduce_scatter(stream, ReduceOp::kSum, In(view_of(all)), Out(shard)), absl::OkStatus());
      ASSERT_EQ(communicator.all_gather(stream, In(shard), Out(view_of(all))), absl::OkStatus());
      // The same bits as one all_reduce.
      std::vector<float> sum = inputs[rank];
      ASSERT_EQ(communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(sum))), absl::OkStatus());
      EXPECT_TRUE(same_bits(all, sum)) << part;
    }
  });
}

TEST_P(GlooSizes, BroadcastFromEveryRoot) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, Stream& stream) {
    for (int root = 0; root < size; ++root) {
      for (int64_t count : {0, 1, 1001, 32768, 32769, 500001}) {
        const std::vector<uint8_t> wanted = [&] {
          const std::vector<int32_t> values = random_values<int32_t>(count, root + count);
          return std::vector<uint8_t>(values.begin(), values.end());
        }();
        std::vector<uint8_t> x = communicator.rank() == root ? wanted : std::vector<uint8_t>(count);
        ASSERT_EQ(communicator.broadcast(stream, root, InOut(view_of(x))), absl::OkStatus());
        EXPECT_TRUE(same_bits(x, wanted)) << count << " from " << root;
      }
    }
  });
}

class GlooPeers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooPeers, ::testing::Values(2, 3, 4, 8));

TEST_P(GlooPeers, SendAndReceiveRoundTheRing) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, Stream& stream) {
    const int rank = communicator.rank(), right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int64_t count : {0, 1, 16384, 16385, 400001}) {
      std::vector<Bf16> x = random_values<Bf16>(count, rank), y(count);
      for (int turn = 0; turn < 2; ++turn) {  // Rank 0 receives last, else all would wait for all.
        const bool sends = (turn == 0) == (rank != 0);
        ASSERT_EQ(
            sends ? communicator.send(stream, right, In(view_of(x))) : communicator.recv(stream, left, Out(view_of(y))),
            absl::OkStatus());
      }
      EXPECT_TRUE(same_bits(y, random_values<Bf16>(count, left))) << count;
    }
  });
}

// Everyone at once, at every distance; with two members both ends are the same peer.
TEST_P(GlooPeers, ExchangeRoundTheRing) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, Stream& stream) {
    const int rank = communicator.rank();
    for (int distance = 1; distance < size; ++distance) {
      const int to = (rank + distance) % size, from = (rank + size - distance) % size;
      for (int64_t count : {0, 1, 16384, 131072, 131073, 400001}) {
        std::vector<Bf16> x = random_values<Bf16>(count, rank + 10 * distance), y(count);
        ASSERT_EQ(communicator.exchange(stream, to, In(view_of(x)), from, Out(view_of(y))), absl::OkStatus());
        EXPECT_TRUE(same_bits(y, random_values<Bf16>(count, from + 10 * distance))) << count << " from " << from;
      }
    }
  });
}

TEST(GlooExchange, ItsHalvesMayBeSendsAndReceives) {
  run_group(3, [&](Communicator& communicator, Stream& stream) {
    const int rank = communicator.rank();
    for (int64_t count : {5, 300001}) {
      std::vector<float> x = random_values<float>(count, rank), y(count);
      if (rank == 0) {
        ASSERT_EQ(communicator.exchange(stream, 1, In(view_of(x)), 2, Out(view_of(y))), absl::OkStatus());
        EXPECT_TRUE(same_bits(y, random_values<float>(count, 2)));
      } else if (rank == 1) {
        ASSERT_EQ(communicator.recv(stream, 0, Out(view_of(y))), absl::OkStatus());
        EXPECT_TRUE(same_bits(y, random_values<float>(count, 0)));
      } else {
        ASSERT_EQ(communicator.send(stream, 0, In(view_of(x))), absl::OkStatus());
      }
    }
  });
}

TEST(GlooExchange, RefusesUnequalSizesAndItself) {
  run_group(2, [&](Communicator& communicator, Stream& stream) {
    std::vector<float> x(4), y(5);
    const absl::Status status = communicator.exchange(stream, 1 - communicator.rank(), In(view_of(x)),
                                                      1 - communicator.rank(), Out(view_of(y)));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("y: 5 elements, wanted 1 * 4"));
  });
  run_group(2, [&](Communicator& communicator, Stream& stream) {
    std::vector<float> x(4), y(4);
    const absl::Status status =
        communicator.exchange(stream, communicator.rank(), In(view_of(x)), 1 - communicator.rank(), Out(view_of(y)));
    EXPECT_THAT(std::string(status.message()), HasSubstr("is this rank"));
  });
}

TEST(GlooExchange, AnotherLengthThanThePeersIsTold) {
  run_group(2, [&](Communicator& communicator, Stream& stream) {
    const int64_t count = communicator.rank() == 0 ? 400000 : 500000;
    std::vector<float> x(count), y(count);
    const absl::Status status = communicator.exchange(stream, 1 - communicator.rank(), In(view_of(x)),
                                                      1 - communicator.rank(), Out(view_of(y)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  });
}

TEST_P(GlooSizes, BarrierHoldsUntilAllAreThere) {
  const int size = GetParam();
  std::atomic<int> arrived{0};
  run_group(size, [&](Communicator& communicator, Stream&) {
    for (int round = 1; round <= 20; ++round) {
      arrived.fetch_add(1);
      ASSERT_EQ(communicator.barrier(), absl::OkStatus());
      EXPECT_GE(arrived.load(), round * size);
    }
  });
}

TEST_P(GlooSizes, RepeatedRunsGiveTheSameBits) {
  const int size = GetParam();
  std::mutex mutex;
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 3; ++run) {
    run_group(size, [&](Communicator& communicator, Stream& stream) {
      std::vector<float> x = random_values<float>(200003, communicator.rank());
      ASSERT_EQ(communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))), absl::OkStatus());
      const std::lock_guard lock(mutex);
      results.push_back(std::move(x));
    });
  }
  ASSERT_EQ(results.size(), static_cast<size_t>(3 * size));
  for (const std::vector<float>& result : results) EXPECT_TRUE(same_bits(result, results[0]));
}

TEST(GlooCommunicator, TwoGroupsWorkSideBySide) {
  constexpr int kRanks = 3;
  fakes::InProcessStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int group = 0; group < 2; ++group) {
      threads.emplace_back([&, rank, group] {
        // The second group has its members in another order.
        const int place = group == 0 ? rank : kRanks - 1 - rank;
        auto communicator = create_gloo_communicator(store, options_for("g" + std::to_string(group), place, kRanks));
        ASSERT_TRUE(communicator.ok()) << communicator.status();
        NoStream stream;
        for (int call = 0; call < 100; ++call) {
          std::vector<int32_t> x(call % 10 == 0 ? 50000 : 50, rank + group + call);
          ASSERT_EQ((*communicator)->all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))), absl::OkStatus());
          ASSERT_EQ(x.back(), 3 + kRanks * (group + call));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GlooCommunicator, Bf16IsRoundedOnceAtTheEnd) {
  run_group(3, [](Communicator& communicator, Stream& stream) {
    // Neighbours of 1 are 2^-7 apart: rounded after each addition, 1 + e + e stays 1 for e = 1.5 * 2^-9.
    for (int64_t count : {10, 40000}) {
      std::vector<Bf16> x(count, communicator.rank() == 0 ? Bf16(1.0f) : Bf16(1.5f / 512));
      ASSERT_EQ(communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))), absl::OkStatus());
      EXPECT_EQ(static_cast<float>(x.back()), 1.0078125f);  // 1 + 2^-7
    }
  });
}

TEST(GlooReduce, MaximumKeepsANan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1.0f, -2.0f}, b = {1.0f, nan, -1.0f};
  std::vector<float> y(3);
  const std::byte* parts[] = {reinterpret_cast<const std::byte*>(a.data()),
                              reinterpret_cast<const std::byte*>(b.data())};
  reduce_parts(ReduceOp::kMax, DType::kF32, parts, reinterpret_cast<std::byte*>(y.data()), 3);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_EQ(y[2], -1.0f);
}

// --- Errors --------------------------------------------------------------------------------------------------------

// Every rank makes its call, and all must get an error that stays. Returns them in rank order.
std::vector<absl::Status> run_failing(int size, const std::function<absl::Status(Communicator&, Stream&)>& call,
                                      std::chrono::milliseconds call_timeout = std::chrono::seconds(60)) {
  std::vector<absl::Status> statuses(size);
  run_group(
      size,
      [&](Communicator& communicator, Stream& stream) {
        const absl::Status status = call(communicator, stream);
        statuses[communicator.rank()] = status;
        std::vector<float> x(10);
        if (status.ok()) return;
        EXPECT_EQ(communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(x))), status);
        EXPECT_EQ(communicator.barrier(), status);
      },
      call_timeout);
  return statuses;
}

TEST(GlooErrors, DifferentSizesAreAnErrorOnEveryRank) {
  for (int odd_one : {0, 2}) {
    for (int64_t count : {10, 5000, 8192, 100000}) {  // Both in packets, across the limit, both in chunks.
      for (int64_t other : {count + 1, 30 * count}) {
        const auto statuses = run_failing(4, [&](Communicator& communicator, Stream& stream) {
          std::vector<float> x(communicator.rank() == odd_one ? other : count);
          return communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(x)));
        });
        std::string all;
        for (const absl::Status& status : statuses) {
          EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
          all += std::string(status.message()) + "\n";
        }
        EXPECT_THAT(all, AllOf(HasSubstr("communicator 'group', all_reduce, rank "), HasSubstr("the members disagree"),
                               HasSubstr(std::to_string(other) + " f32 (sum)")));
      }
    }
  }
}

TEST(GlooErrors, DifferentOperationsAreAnErrorOnEveryRank) {
  const auto statuses = run_failing(3, [](Communicator& communicator, Stream& stream) {
    std::vector<float> x(9), y(3);
    if (communicator.rank() == 1) return communicator.broadcast(stream, 0, InOut(view_of(x)));
    return communicator.reduce_scatter(stream, ReduceOp::kSum, In(view_of(x)), Out(view_of(y)));
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(GlooErrors, AReceiverOfAnotherSizeIsAnErrorOnBothSides) {
  for (int64_t count : {10, 100000}) {
    const auto statuses = run_failing(2, [&](Communicator& communicator, Stream& stream) {
      std::vector<float> x(count), y(count - 1);
      if (communicator.rank() == 0) {
        absl::Status sent = communicator.send(stream, 1, In(view_of(x)));
        return sent.ok() ? communicator.barrier() : sent;  // A message in one packet has left before it is refused.
      }
      return communicator.recv(stream, 0, Out(view_of(y)));
    });
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
    EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("the members disagree: rank 0 makes send/recv of "));
  }
}

TEST(GlooErrors, ABadArgumentFailsThePeersTooAndAtOnce) {
  const auto statuses = run_failing(2, [](Communicator& communicator, Stream& stream) {
    std::vector<float> x(10), y(communicator.rank() == 0 ? 20 : 19);
    return communicator.all_gather(stream, In(view_of(x)), Out(view_of(y)));
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("with rank 1"));
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("y: 19 elements, wanted 2 * 10"));
}

TEST(GlooErrors, APeerThatDoesNotComeIsADeadline) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  run_group(
      2,
      [&](Communicator& communicator, Stream& stream) {
        std::unique_lock lock(mutex);
        if (communicator.rank() == 1) {  // Stays connected, and makes no call.
          changed.wait(lock, [&] { return done; });
          return;
        }
        std::vector<float> x(10);
        const absl::Status status = communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(x)));
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("communicator 'group', all_reduce, rank 0 of 2: with rank 1"));
        done = true;
        changed.notify_all();
      },
      std::chrono::milliseconds(300));
}

TEST(GlooErrors, AMemberThatNeverConnectsIsNamedByItsKey) {
  fakes::InProcessStore store;
  CommunicatorOptions options = options_for("lonely", 0, 2);
  options.connect_timeout = std::chrono::milliseconds(200);
  const absl::Status status = create_gloo_communicator(store, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("gang 'lonely', connect, rank 0: "), HasSubstr("missing keys: communicator/lonely/")));
}

TEST(GlooErrors, OptionsAreChecked) {
  fakes::InProcessStore store;
  const auto message = [&](CommunicatorOptions options) {
    const absl::Status status = create_gloo_communicator(store, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(options_for("", 0, 1)), HasSubstr("name is empty"));
  EXPECT_THAT(message(options_for("a", 2, 2)), HasSubstr("this rank, 2, is not in it"));
  EXPECT_THAT(message(options_for("a", 0, 0)), HasSubstr("size 0 is less than 1"));
  CommunicatorOptions options = options_for("a", 0, 2);
  options.listen_host = "";
  EXPECT_THAT(message(options), HasSubstr("listen_host is empty"));
  options.listen_host = "203.0.113.7";  // No address of this machine.
  EXPECT_THAT(message(options), HasSubstr("cannot listen on listen_host '203.0.113.7'"));
}

TEST(GlooErrors, CallsOfAGroupOfOneAreCheckedToo) {
  run_group(1, [](Communicator& communicator, Stream& stream) {
    std::vector<uint8_t> x(3);
    const absl::Status status = communicator.all_reduce(stream, ReduceOp::kSum, InOut(view_of(x)));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("x: dtype u8, wanted f32, bf16, f16 or i32"));
    EXPECT_EQ(communicator.barrier(), status);
  });
  run_group(1, [](Communicator& communicator, Stream& stream) {
    std::vector<float> x(3);
    EXPECT_THAT(std::string(communicator.send(stream, 0, In(view_of(x))).message()), HasSubstr("peer: 0 is this rank"));
  });
}

}  // namespace
}  // namespace telar::backend::cpu
