// Copies of the state behind a step, taken while the next steps run: the bits of that step, at no cost to the others.
#include "worker/train/snapshot.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/fakes/device.h"
#include "tests/worker/train/tiny.h"
#include "worker/backend/cpu/cpu.h"
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
      device->before_copies["snapshot"] = [this](backend::Stream&) {
        std::this_thread::sleep_for(delay_);
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
    const absl::Status status = replica->prepare_snapshots(SavedState::share(replica->shape()), UINT64_MAX);
    EXPECT_TRUE(status.ok()) << status;
    return replica;
  }

  std::chrono::microseconds delay_{0};  // Of each copy of a snapshot.
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

TEST_F(SnapshotTest, SaysWhatItWouldNeed) {
  const auto replica = create(cpu_);
  const absl::Status status = replica->prepare_snapshots(SavedState::share(replica->shape()), 1000);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("* 12"), HasSubstr("but 1000 are free"), HasSubstr("checkpoint.async: false")));
  EXPECT_EQ(replica->snapshot(), nullptr);
  EXPECT_TRUE(check_host_memory(10, 120, 120).ok());
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
