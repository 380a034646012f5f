// Copies of the state behind a step, taken while the next steps run: the bits of that step, at no cost to the others.
#include "worker/train/snapshot.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>
#include <utility>

#include "tests/fakes/device.h"
#include "tests/fakes/key_value_store.h"
#include "tests/worker/train/tiny.h"
#include "worker/backend/cpu/cpu.h"
#include "worker/train/failure.h"
#include "worker/train/host_memory.h"
#include "worker/train/saved_state.h"

namespace telar::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::state_of;
using testing::submit;

// What a snapshot holds, in the order of state_of().
std::vector<float> taken(Replica& replica) {
  EXPECT_TRUE(replica.snapshot()->copy().wait().ok());
  std::vector<float> all;
  for (size_t kind = 0; kind < 3; ++kind) {
    for (const parallel::Piece& piece : replica.pieces()) {
      std::vector<float> part(static_cast<size_t>(piece.slice.count));
      const absl::Status status = replica.snapshot()->read(kind, piece, part);
      EXPECT_TRUE(status.ok()) << status;
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

class SnapshotTest : public ::testing::Test {
 protected:
  static std::unique_ptr<backend::Device> cpu_device() {
    return backend::cpu::create_device({}, backend::cpu::create_kernels(), nullptr);
  }
  SnapshotTest() {
    for (fakes::FakeDevice* device : {&cpu_, &gpu_}) {
      device->before_copies["host_copy"] = [this](backend::Stream&) {
        ++copies_;
        std::this_thread::sleep_for(delay_);
        if (hold_.valid()) hold_.wait();
        return absl::OkStatus();
      };
    }
  }
  static std::unique_ptr<Replica> create(backend::Device& device, v1::Precision precision = v1::FP32,
                                         Replica::Execution execution = Replica::Execution::kLanes) {
    plan::RunShape shape = plan::run_shape(testing::tiny_spec(precision), parallel::Mesh::of_rank(0, 1, 1, 1));
    auto replica = Replica::create(std::move(shape), device, {}, execution);
    EXPECT_TRUE(replica.ok()) << replica.status();
    EXPECT_TRUE((*replica)->init().ok());
    return *std::move(replica);
  }
  static std::unique_ptr<Replica> with_snapshots(backend::Device& device, v1::Precision precision = v1::FP32,
                                                 Replica::Execution execution = Replica::Execution::kLanes) {
    auto replica = create(device, precision, execution);
    const absl::Status status = replica->prepare_snapshots(SavedState::share(replica->shape()));
    EXPECT_TRUE(status.ok()) << status;
    return replica;
  }

  std::chrono::microseconds delay_{0};  // Of each copy of a snapshot.
  std::shared_future<void> hold_;       // Where there is one, copies wait for it.
  std::atomic<int> copies_{0};          // Begun.
  fakes::FakeDevice cpu_{cpu_device()};
  fakes::FakeDevice gpu_{cpu_device(), true};
};

// With two steps in flight, slow copies, and a snapshot behind each third step: bit by bit what a replica that stops
// there has, and the steps are those of one that takes none.
TEST_F(SnapshotTest, HasTheBitsOfItsStepAndChangesNone) {
  constexpr uint64_t kSteps = 12;
  for (const v1::Precision precision : {v1::FP32, v1::BF16}) {
    std::vector<std::vector<float>> states(kSteps + 1);
    std::vector<double> losses;
    const auto plain = create(cpu_, precision);
    for (uint64_t step = 1; step <= kSteps; ++step) {
      ASSERT_TRUE(submit(*plain, step).ok());
      losses.push_back(plain->finish_step().value().loss);
      states[step] = state_of(*plain);
    }
    for (fakes::FakeDevice* device : {&cpu_, &gpu_}) {
      for (const auto execution : {Replica::Execution::kLanes, Replica::Execution::kSequential}) {
        for (const int microseconds : {0, 300}) {
          delay_ = std::chrono::microseconds(microseconds);
          const auto replica = with_snapshots(*device, precision, execution);
          std::vector<double> seen;
          uint64_t submitted = 0, pending = 0;
          while (seen.size() < kSteps) {
            while (submitted < kSteps && replica->in_flight() < 2) {
              if (pending != 0 && (submitted + 1) % 3 == 0) {  // The next one needs the memory.
                EXPECT_TRUE(taken(*replica) == states[pending]) << "step " << pending;
                pending = 0;
              }
              ASSERT_TRUE(submit(*replica, ++submitted).ok());
              if (submitted % 3 != 0) continue;
              ASSERT_TRUE(replica->take_snapshot().ok());
              pending = submitted;
            }
            const auto result = replica->finish_step();
            ASSERT_TRUE(result.ok()) << result.status();
            seen.push_back(result->loss);
            const bool behind_one = seen.size() % 3 == 1 && seen.size() > 1;
            if (!behind_one) {
              EXPECT_EQ(result->held, 0);
            }
          }
          EXPECT_TRUE(taken(*replica) == states[kSteps]);
          EXPECT_EQ(seen, losses);
          EXPECT_TRUE(state_of(*replica) == states[kSteps]);
          EXPECT_EQ(replica->graph_state().captured, device == &gpu_ && execution == Replica::Execution::kLanes);
          const std::span<const std::byte> extra = replica->snapshot()->extra();
          std::vector<float> step_state(backend::kStepStates);
          ASSERT_TRUE(replica->read_step_state(step_state).ok());
          EXPECT_EQ(std::memcmp(extra.data(), step_state.data(), extra.size()), 0);
        }
      }
    }
  }
}

// Only the update waits: the forward of the next step runs while the copy hangs.
TEST_F(SnapshotTest, ACopyThatTakesLongHoldsTheUpdateAndTellsHowLong) {
  delay_ = std::chrono::milliseconds(3);
  const auto replica = with_snapshots(cpu_);
  testing::train(*replica, 2, 1);
  ASSERT_TRUE(submit(*replica, 3).ok());
  ASSERT_TRUE(replica->take_snapshot().ok());
  ASSERT_TRUE(submit(*replica, 4).ok());
  EXPECT_EQ(replica->finish_step().value().held, 0);
  const double held = replica->finish_step().value().held;
  EXPECT_GT(held, 0);
  EXPECT_LT(held, 5);
  ASSERT_TRUE(submit(*replica, 5).ok());
  EXPECT_EQ(replica->finish_step().value().held, 0);
}

// A copy that is not over when all of a step but its update is, nor when the step behind it is submitted: both wait,
// and come to what they come to without a copy.
TEST_F(SnapshotTest, ACopyThatOutlastsAStepHoldsItAndTheNext) {
  std::vector<double> losses;
  const auto plain = create(cpu_);
  std::vector<float> state;
  for (uint64_t step = 1; step <= 6; ++step) {
    ASSERT_TRUE(submit(*plain, step).ok());
    losses.push_back(plain->finish_step().value().loss);
    if (step == 3) state = state_of(*plain);
  }
  for (fakes::FakeDevice* device : {&cpu_, &gpu_}) {
    copies_ = 0;
    hold_ = {};
    const auto replica = with_snapshots(*device);
    testing::train(*replica, 2, 1);
    std::promise<void> open, at_gate;
    device->behind_timed_record = [&at_gate, passed = false](backend::Stream&) mutable {
      if (!std::exchange(passed, true)) at_gate.set_value();
      return absl::OkStatus();
    };
    hold_ = open.get_future().share();
    ASSERT_TRUE(submit(*replica, 3).ok());
    ASSERT_TRUE(replica->take_snapshot().ok());
    ASSERT_TRUE(submit(*replica, 4).ok());
    EXPECT_EQ(replica->finish_step().value().loss, losses[2]);  // Before any of the copy.
    at_gate.get_future().wait();
    ASSERT_TRUE(submit(*replica, 5).ok());
    auto fourth = std::async(std::launch::async, [&] { return replica->finish_step(); });
    EXPECT_EQ(fourth.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    EXPECT_EQ(copies_, 1);
    open.set_value();
    const auto held = fourth.get();
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ(held->loss, losses[3]);
    EXPECT_GE(held->held, 0.02);
    EXPECT_TRUE(taken(*replica) == state);
    const auto fifth = replica->finish_step();
    EXPECT_EQ(fifth->loss, losses[4]);
    EXPECT_EQ(fifth->held, 0);
    ASSERT_TRUE(submit(*replica, 6).ok());
    EXPECT_EQ(replica->finish_step().value().loss, losses[5]);
  }
}

// 50 saves: the memory was taken before the first.
TEST_F(SnapshotTest, TakesNoMemoryButThatOfTheStart) {
  const auto resident = [] {
    std::ifstream statm("/proc/self/statm");
    uint64_t pages = 0, of_them = 0;
    statm >> pages >> of_them;
    return of_them * 4096;
  };
  const auto replica = with_snapshots(gpu_);
  uint64_t step = 0;
  const auto save = [&] {
    ASSERT_TRUE(submit(*replica, ++step).ok());
    ASSERT_TRUE(replica->take_snapshot().ok());
    ASSERT_TRUE(submit(*replica, ++step).ok());
    taken(*replica);
    ASSERT_TRUE(replica->finish_step().ok());
    ASSERT_TRUE(replica->finish_step().ok());
  };
  for (int i = 0; i < 3; ++i) save();
  const int allocations = gpu_.counts.allocations;
  const uint64_t before = resident();
  for (int i = 0; i < 50; ++i) save();
  EXPECT_EQ(gpu_.counts.allocations, allocations);
  EXPECT_LT(resident(), before + replica->snapshot()->bytes());  // One leaked copy would be that.
}

TEST_F(SnapshotTest, NothingIsOverwrittenUnderACopy) {
  delay_ = std::chrono::milliseconds(2);
  const auto replica = with_snapshots(cpu_);
  testing::train(*replica, 2, 1);
  const std::vector<float> state = state_of(*replica);
  ASSERT_TRUE(replica->take_snapshot().ok());
  for (const parallel::Piece& piece : replica->pieces()) {
    const std::vector<float> zeros(static_cast<size_t>(piece.slice.count));
    ASSERT_TRUE(replica->write(Replica::Kind::kMaster, piece, zeros).ok());
  }
  EXPECT_TRUE(taken(*replica) == state);
}

// Destroyed with a copy under way and a step that waits for it.
TEST_F(SnapshotTest, EndsWithItsReplica) {
  delay_ = std::chrono::milliseconds(1);
  const auto replica = with_snapshots(gpu_);
  testing::train(*replica, 2, 1);
  ASSERT_TRUE(submit(*replica, 3).ok());
  ASSERT_TRUE(replica->take_snapshot().ok());
  ASSERT_TRUE(submit(*replica, 4).ok());
}

TEST_F(SnapshotTest, RefusesToReadWhatItDoesNotHold) {
  const auto replica = with_snapshots(cpu_);
  parallel::Piece piece = replica->pieces().back();
  piece.first += piece.slice.count;
  std::vector<float> out(static_cast<size_t>(piece.slice.count) + parallel::FlatLayout::kAlignment);
  EXPECT_EQ(replica->snapshot()->read(0, piece, out).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(create(cpu_)->take_snapshot().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SnapshotTest, SaysWhatItWillTake) {
  const auto replica = with_snapshots(cpu_);
  EXPECT_EQ(replica->snapshot_bytes(SavedState::share(replica->shape())), replica->snapshot()->bytes());
}

TEST(HostMemory, IsCountedForAllRanksOfANode) {
  EXPECT_TRUE(find_host_memory({}, {10, 120, 120}, nullptr).ok());
  const absl::Status alone = find_host_memory({}, {10, 120, 119}, nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(alone)) << alone;
  EXPECT_EQ(class_of(alone), v1::OUT_OF_MEMORY);
  EXPECT_THAT(std::string(alone.message()), AllOf(HasSubstr("this rank saves 10"), HasSubstr("10 * 12"),
                                                  HasSubstr("but 119 are free"), HasSubstr("checkpoint.async: false")));
  // Ranks 1 and 3 are on one node, where the smaller of what each found free counts; rank 2 is elsewhere.
  const auto ask = [](uint64_t free) {
    fakes::InProcessStore store;
    std::vector<absl::Status> answers(4);
    std::vector<std::thread> ranks;
    for (const uint32_t rank : {1, 2, 3}) {
      ranks.emplace_back([&, rank] {
        v1::RankPlan plan;
        plan.set_rank(rank);
        if (rank == 2) plan.add_node_ranks(2);
        if (rank != 2) plan.mutable_node_ranks()->Add(1), plan.mutable_node_ranks()->Add(3);
        answers[rank] = find_host_memory(plan, {10 * rank, 120 * rank, rank == 1 ? UINT64_MAX : free}, &store);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(answers[1], answers[3]);
    EXPECT_TRUE(answers[2].ok());
    return answers[1];
  };
  EXPECT_TRUE(ask(480).ok());
  EXPECT_THAT(std::string(ask(479).message()), AllOf(HasSubstr("the 2 ranks of this node save 40"),
                                                     HasSubstr("= 480 bytes"), HasSubstr("but 479 are free")));
}

TEST(HostMemory, IsWhatTheControlGroupsLeave) {
  namespace fs = std::filesystem;
  char name[] = "/tmp/telar_host_memory_XXXXXX";
  const fs::path root = mkdtemp(name);
  const auto put = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  EXPECT_EQ(available_host_memory(root.string()), UINT64_MAX);
  put("proc/meminfo", "MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(available_host_memory(root.string()), 1000u * 1024);
  put("proc/self/cgroup", "1:cpu:/other\n0::/slice/unit\n");
  put("sys/fs/cgroup/slice/unit/memory.max", "max\n");
  put("sys/fs/cgroup/slice/unit/memory.current", "5\n");
  EXPECT_EQ(available_host_memory(root.string()), 1000u * 1024);
  put("sys/fs/cgroup/slice/memory.max", "9000\n");
  put("sys/fs/cgroup/slice/memory.current", "8000\n");
  put("sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 500\n");
  EXPECT_EQ(available_host_memory(root.string()), 1500u);
  put("sys/fs/cgroup/slice/memory.current", "10000\n");
  EXPECT_EQ(available_host_memory(root.string()), 0u);
  EXPECT_GT(available_host_memory(), 0u);
  fs::remove_all(root);
}

}  // namespace
}  // namespace telar::train
