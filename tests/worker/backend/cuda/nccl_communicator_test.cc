#include "worker/backend/cuda/nccl_communicator.h"

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>

#include "gmock/gmock.h"
#include "tests/fakes/key_value_store.h"
#include "tests/worker/backend/cuda/library_rig.h"

namespace telar::backend::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CommunicatorOptions options_for(const std::string& name, int rank, int size) {
  return {.name = name,
          .rank = rank,
          .size = size,
          .listen_host = "127.0.0.1",
          .connect_timeout = std::chrono::seconds(60),
          .call_timeout = std::chrono::seconds(60)};
}

// Where the ranks' threads wait for each other. With peer access, an allocation on one device can wait for the kernels
// of another, and they for a peer that is still allocating: so nobody communicates before all have allocated, and
// nobody allocates before all are done.
using Meeting = std::barrier<>;

// Runs `body` once a rank, each on a thread and a GPU of its own with a connected communicator.
using RankBody = std::function<void(Communicator&, LibraryRig&, Meeting&)>;
void run_group(int size, const RankBody& body, std::chrono::milliseconds call_timeout = std::chrono::seconds(60)) {
  fakes::InProcessStore store;
  Meeting meeting(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      LibraryRig rig(rank);
      CommunicatorOptions options = options_for("group", rank, size);
      options.call_timeout = call_timeout;
      auto communicator = cuda::NcclCommunicator::create(rank, store, options);
      EXPECT_TRUE(communicator.ok()) << communicator.status();
      if (communicator.ok()) body(**communicator, rig, meeting);
      meeting.arrive_and_drop();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// After the calls of a round: waits for their results, then for the others.
void finish(LibraryRig& rig, Meeting& meeting) {
  EXPECT_EQ(rig.stream().synchronize(), absl::OkStatus());
  meeting.arrive_and_wait();
}

class CudaNccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (gpu_count() < GetParam()) GTEST_SKIP() << "needs " << GetParam() << " GPUs";
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaNccl, ::testing::Values(1, 2, 4));
// Those that need a peer.
class CudaNcclPeers : public CudaNccl {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaNcclPeers, ::testing::Values(2, 4));

// Small whole numbers: exact in every type and any order of summation.
Values numbers(int64_t count, int rank) {
  Values values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<double>(i % 13 - 6 + 2 * rank);
  return values;
}

constexpr int64_t kCounts[] = {1, 1000, 32769, 500001};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32};

TEST_P(CudaNccl, AllReduce) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
    ASSERT_EQ(communicator.size(), size);
    for (int64_t count : kCounts) {
      for (DType dtype : kTypes) {
        Values sum(count, 0.0), max(count, -1e9);
        for (int rank = 0; rank < size; ++rank) {
          const Values part = numbers(count, rank);
          for (int64_t i = 0; i < count; ++i) sum[i] += part[i], max[i] = std::max(max[i], part[i]);
        }
        Tensor x(rig, dtype, {count}, numbers(count, communicator.rank()));
        Tensor y(rig, dtype, {count}, numbers(count, communicator.rank()));
        meeting.arrive_and_wait();
        ASSERT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kSum, x.inout()), absl::OkStatus());
        ASSERT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kMax, y.inout()), absl::OkStatus());
        finish(rig, meeting);
        EXPECT_EQ(x.values(), sum) << count << " " << std::string(name_of(dtype));
        EXPECT_EQ(y.values(), max) << count << " " << std::string(name_of(dtype));
      }
    }
    Tensor none(rig, DType::kF32, {0}, {});
    EXPECT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kSum, none.inout()), absl::OkStatus());
  });
}

// Set up by an eager call, then recorded, then run from the graph, which goes before the communicator.
TEST_P(CudaNccl, CanBeCaptured) {
  const int size = GetParam();
  constexpr int64_t kCount = 32769;
  constexpr int kLaunches = 3;
  run_group(size, [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
    Values want(kCount, 0.0);
    for (int rank = 0; rank < size; ++rank) {
      const Values part = numbers(kCount, rank);
      for (int64_t i = 0; i < kCount; ++i) want[i] += part[i];
    }
    for (int launch = 0; launch < kLaunches; ++launch) {  // Each adds up what the one before left everywhere.
      for (double& value : want) value *= size;
    }
    Tensor x(rig, DType::kF32, {kCount}, numbers(kCount, communicator.rank()));
    meeting.arrive_and_wait();
    ASSERT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kSum, x.inout()), absl::OkStatus());
    finish(rig, meeting);
    const cudaStream_t stream = rig.stream().handle();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kSum, x.inout()), absl::OkStatus());
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphUpload(exec, stream), cudaSuccess);
    finish(rig, meeting);
    for (int launch = 0; launch < kLaunches; ++launch) EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    finish(rig, meeting);
    EXPECT_EQ(x.values(), want);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    meeting.arrive_and_wait();
    ASSERT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kMax, x.inout()), absl::OkStatus());
    finish(rig, meeting);
    EXPECT_EQ(x.values(), want);
  });
}

TEST_P(CudaNccl, GatherAndScatter) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
    const int rank = communicator.rank();
    for (int64_t part : kCounts) {
      for (DType dtype : kTypes) {
        Values all;
        for (int member = 0; member < size; ++member) {
          const Values theirs = numbers(part, member);
          all.insert(all.end(), theirs.begin(), theirs.end());
        }
        Tensor x(rig, dtype, {part}, numbers(part, rank)),
            gathered(rig, dtype, {part * size}, Values(part * size, -99));
        Tensor scattered(rig, dtype, {part}, Values(part, -99));
        meeting.arrive_and_wait();
        ASSERT_EQ(communicator.all_gather(rig.stream(), x.in(), gathered.out()), absl::OkStatus());
        ASSERT_EQ(communicator.reduce_scatter(rig.stream(), ReduceOp::kSum, gathered.in(), scattered.out()),
                  absl::OkStatus());
        finish(rig, meeting);
        EXPECT_EQ(gathered.values(), all);
        Values want = numbers(part, rank);
        for (double& value : want) value *= size;
        EXPECT_EQ(scattered.values(), want);
      }
    }
  });
}

TEST_P(CudaNccl, InPlace) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
    const int64_t part = 4096;
    Tensor all(rig, DType::kF32, {part * size}, numbers(part * size, communicator.rank()));
    View shard = all.out();
    shard.shape = Shape{part};
    shard.data += communicator.rank() * part * static_cast<int64_t>(sizeof(float));
    meeting.arrive_and_wait();
    ASSERT_EQ(communicator.reduce_scatter(rig.stream(), ReduceOp::kSum, all.in(), Out(shard)), absl::OkStatus());
    ASSERT_EQ(communicator.all_gather(rig.stream(), In(shard), all.out()), absl::OkStatus());
    finish(rig, meeting);
    Values want = numbers(part * size, 0);
    for (double& value : want) value = value * size + size * (size - 1);
    EXPECT_EQ(all.values(), want);
  });
}

TEST_P(CudaNccl, BroadcastFromEveryRoot) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
    for (int root = 0; root < size; ++root) {
      Tensor x(rig, DType::kBF16, {777}, numbers(777, communicator.rank()));
      meeting.arrive_and_wait();
      ASSERT_EQ(communicator.broadcast(rig.stream(), root, x.inout()), absl::OkStatus());
      finish(rig, meeting);
      EXPECT_EQ(x.values(), numbers(777, root));
    }
  });
}

TEST_P(CudaNccl, BarrierHoldsUntilAllAreThere) {
  const int size = GetParam();
  std::atomic<int> arrived{0};
  run_group(size, [&](Communicator& communicator, LibraryRig&, Meeting& meeting) {
    meeting.arrive_and_wait();
    for (int round = 1; round <= 20; ++round) {
      arrived.fetch_add(1);
      ASSERT_EQ(communicator.barrier(), absl::OkStatus());
      EXPECT_GE(arrived.load(), round * size);
    }
  });
}

TEST_P(CudaNcclPeers, ExchangeRoundTheRing) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
    const int rank = communicator.rank();
    for (int distance = 1; distance < size; ++distance) {
      const int to = (rank + distance) % size, from = (rank + size - distance) % size;
      for (int64_t count : kCounts) {
        Tensor x(rig, DType::kF32, {count}, numbers(count, rank)), y(rig, DType::kF32, {count}, Values(count, -99));
        meeting.arrive_and_wait();
        ASSERT_EQ(communicator.exchange(rig.stream(), to, x.in(), from, y.out()), absl::OkStatus());
        finish(rig, meeting);
        EXPECT_EQ(y.values(), numbers(count, from));
      }
    }
  });
}

TEST_P(CudaNcclPeers, SendAndReceiveRoundTheRing) {
  const int size = GetParam();
  run_group(size, [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
    const int rank = communicator.rank(), right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int64_t count : kCounts) {
      Tensor x(rig, DType::kF32, {count}, numbers(count, rank)), y(rig, DType::kF32, {count}, Values(count, -99));
      meeting.arrive_and_wait();
      for (int turn = 0; turn < 2; ++turn) {  // Rank 0 receives last, else all would wait for all.
        const bool sends = (turn == 0) == (rank != 0);
        ASSERT_EQ(
            sends ? communicator.send(rig.stream(), right, x.in()) : communicator.recv(rig.stream(), left, y.out()),
            absl::OkStatus());
      }
      finish(rig, meeting);
      EXPECT_EQ(y.values(), numbers(count, left));
    }
  });
}

TEST_P(CudaNcclPeers, APeerThatDoesNotComeToTheBarrierIsADeadline) {
  std::atomic<bool> done{false};
  run_group(
      GetParam(),
      [&](Communicator& communicator, LibraryRig&, Meeting& meeting) {
        meeting.arrive_and_wait();
        ASSERT_EQ(communicator.barrier(), absl::OkStatus());  // Connections are made.
        if (communicator.rank() > 0) {
          done.wait(false);
          return;
        }
        const absl::Status status = communicator.barrier();
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("communicator 'group', barrier, rank 0 of "));
        EXPECT_EQ(communicator.barrier(), status);
        done = true;
        done.notify_all();
      },
      std::chrono::seconds(3));
}

// All groups of a rank on one stream, in one order: two over the same ranks, one in another order, one of this rank.
TEST_P(CudaNccl, ManyGroupsOfARank) {
  const int size = GetParam();
  fakes::InProcessStore store;
  Meeting meeting(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      LibraryRig rig(rank);
      std::vector<Group> groups(4);
      groups[0].name = "world", groups[1].name = "same", groups[2].name = "turned";
      for (int member = 0; member < size; ++member) {
        groups[0].ranks.push_back(member), groups[1].ranks.push_back(member);
        groups[2].ranks.push_back(size - 1 - member);
      }
      groups[3] = {"alone." + std::to_string(rank), {rank}};
      auto made = cuda::create_nccl_communicators(rank, store, {.rank = rank, .listen_host = "127.0.0.1"}, groups);
      EXPECT_TRUE(made.ok()) << made.status();
      Tensor x(rig, DType::kF32, {1000}, numbers(1000, rank)), all(rig, DType::kF32, {size}, Values(size, -1));
      Tensor one(rig, DType::kF32, {1}, {static_cast<double>(rank)});
      meeting.arrive_and_wait();
      for (int call = 0; made.ok() && call < 3; ++call) {
        EXPECT_EQ((*made)[0]->all_reduce(rig.stream(), ReduceOp::kMax, x.inout()), absl::OkStatus());
        EXPECT_EQ((*made)[1]->all_reduce(rig.stream(), ReduceOp::kMax, x.inout()), absl::OkStatus());
        EXPECT_EQ((*made)[2]->all_gather(rig.stream(), one.in(), all.out()), absl::OkStatus());
        EXPECT_EQ((*made)[3]->all_reduce(rig.stream(), ReduceOp::kSum, x.inout()), absl::OkStatus());
      }
      finish(rig, meeting);
      EXPECT_EQ(x.values(), numbers(1000, size - 1));
      for (int member = 0; member < size; ++member) EXPECT_EQ(all.values()[member], size - 1 - member);
      meeting.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank 0 makes a call that the others never make, by itself or from a graph: its host waits for the stream, and must
// come back with an error.
class CudaNcclHang : public CudaNccl {
 protected:
  void check(bool captured) {
    std::atomic<bool> done{false};
    run_group(
        GetParam(),
        [&](Communicator& communicator, LibraryRig& rig, Meeting& meeting) {
          const int rank = communicator.rank();
          Tensor x(rig, DType::kF32, {100000}, numbers(100000, rank));
          cudaGraph_t graph = nullptr;
          cudaGraphExec_t exec = nullptr;
          meeting.arrive_and_wait();
          ASSERT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kMax, x.inout()), absl::OkStatus());
          finish(rig, meeting);
          if (captured) {
            ASSERT_EQ(cudaStreamBeginCapture(rig.stream().handle(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
            EXPECT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kMax, x.inout()), absl::OkStatus());
            ASSERT_EQ(cudaStreamEndCapture(rig.stream().handle(), &graph), cudaSuccess);
            ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            ASSERT_EQ(cudaGraphUpload(exec, rig.stream().handle()), cudaSuccess);
            finish(rig, meeting);
          }
          if (rank > 0) {
            done.wait(false);
          } else {
            if (captured) {
              EXPECT_EQ(cudaGraphLaunch(exec, rig.stream().handle()), cudaSuccess);
            } else {
              EXPECT_EQ(communicator.all_reduce(rig.stream(), ReduceOp::kMax, x.inout()), absl::OkStatus());
            }
            const absl::Status status =
                cuda::NcclWatchdog::instance().wait(0, [&] { return rig.stream().synchronize(); });
            EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
            EXPECT_THAT(std::string(status.message()),
                        AllOf(HasSubstr("communicator 'group', "), HasSubstr("rank 0 of "),
                              HasSubstr(captured ? "calls in graphs" : "all_reduce")));
            EXPECT_FALSE(communicator.all_reduce(rig.stream(), ReduceOp::kMax, x.inout()).ok());
            done = true;
            done.notify_all();
          }
          meeting.arrive_and_wait();
          if (!captured) return;
          EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
          EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        },
        std::chrono::seconds(3));
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaNcclHang, ::testing::Values(2));
TEST_P(CudaNcclHang, ACallThatNobodyJoinsEndsTheHostsWait) { check(false); }
TEST_P(CudaNcclHang, AGraphThatNobodyJoinsEndsTheHostsWait) { check(true); }

class CudaNcclAlone : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() < 1) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(CudaNcclAlone, CallsOfAGroupOfOneAreChecked) {
  run_group(1, [](Communicator& communicator, LibraryRig& rig, Meeting&) {
    Tensor x(rig, DType::kF32, {3}, {1, 2, 3}), y(rig, DType::kF32, {4}, {1, 2, 3, 4});
    const absl::Status status = communicator.all_gather(rig.stream(), x.in(), y.out());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("communicator 'group', all_gather, rank 0 of 1: y: 4 elements, wanted 1 * 3"));
    EXPECT_EQ(communicator.barrier(), status);
  });
  run_group(1, [](Communicator& communicator, LibraryRig& rig, Meeting&) {
    Tensor x(rig, DType::kF32, {3}, {1, 2, 3});
    EXPECT_THAT(std::string(communicator.send(rig.stream(), 0, x.in()).message()), HasSubstr("peer: 0 is this rank"));
  });
}

TEST_F(CudaNcclAlone, AMemberThatNeverConnectsIsADeadline) {
  fakes::InProcessStore store;
  CommunicatorOptions options = options_for("lonely", 1, 2);
  options.connect_timeout = std::chrono::seconds(1);
  absl::Status status = cuda::NcclCommunicator::create(0, store, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("communicator 'lonely', connect, rank 1 of 2"),
                                                   HasSubstr("missing keys: communicator/lonely/nccl")));
  options.rank = 0;  // Brings the key, and waits for a peer inside NCCL.
  options.connect_timeout = std::chrono::seconds(3);
  status = cuda::NcclCommunicator::create(0, store, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST(CudaNcclOptions, AreChecked) {
  fakes::InProcessStore store;
  const auto message = [&](const CommunicatorOptions& options) {
    const absl::Status status = cuda::NcclCommunicator::create(0, store, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(options_for("", 0, 1)), HasSubstr("name is empty"));
  EXPECT_THAT(message(options_for("a", 2, 2)), HasSubstr("rank 2 is not in [0, size = 2)"));
  EXPECT_THAT(message(options_for("a", 0, 0)), HasSubstr("size 0 is less than 1"));
}

}  // namespace
}  // namespace telar::backend::testing
