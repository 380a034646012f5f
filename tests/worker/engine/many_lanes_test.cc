// Many ranks in one process with many communicators each: nothing deadlocks, and who waits sleeps.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using testing::add;
using testing::comm_lane;
using testing::kComputeLane;
using testing::persistent;
using testing::update;
using testing::write;

constexpr size_t kRanks = 8;
constexpr uint32_t kGroups = 10;
constexpr int kRounds = 6;

// How many lanes of all ranks wait for their peers.
class Waiting {
 public:
  void change(int by) {
    const std::lock_guard lock(mutex_);
    count_ += by;
    changed_.notify_all();
  }
  void until(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ == count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// One group: each member brings a number and gets the sum.
class Meeting {
 public:
  explicit Meeting(Waiting& waiting) : waiting_(waiting) {}
  int sum(int value) {
    std::unique_lock lock(mutex_);
    sum_ += value;
    if (++arrived_ == kRanks) {
      result_ = std::exchange(sum_, 0);
      arrived_ = 0;
      ++generation_;
      met_.notify_all();
      return result_;
    }
    waiting_.change(1);
    met_.wait(lock, [this, mine = generation_] { return generation_ != mine; });
    waiting_.change(-1);
    return result_;
  }

 private:
  Waiting& waiting_;
  std::mutex mutex_;
  std::condition_variable met_;
  size_t arrived_ = 0;
  int sum_ = 0, result_ = 0, generation_ = 0;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// x[g] = sum over the ranks of x[g], then + 1; kRounds times on each group. `first` is called by the first op.
struct Rank {
  Rank(std::vector<std::unique_ptr<Meeting>>& meetings, const std::function<void()>& first) {
    for (uint32_t group = 0; group < kGroups; ++group) x.push_back(persistent(program, "x", 1));
    std::vector<Access> all;
    for (const Tensor& value : x) all.push_back(write(value));
    add(program, "first", kComputeLane, all, [this, first](const RunContext& context, auto&) {
      first();
      for (const Tensor& value : x) *context.addresses->at(value) = std::byte{0};
      return absl::OkStatus();
    });
    for (int round = 0; round < kRounds; ++round) {
      for (uint32_t group = 0; group < kGroups; ++group) {
        const Tensor& value = x[group];
        Meeting& meeting = *meetings[group];
        add(program, "sum", comm_lane(group), {update(value)}, [value, &meeting](const RunContext& context, auto&) {
          std::byte& at = *context.addresses->at(value);
          at = static_cast<std::byte>(meeting.sum(std::to_integer<int>(at)));
          return absl::OkStatus();
        });
        add(program, "next", kComputeLane, {update(value)}, [value](const RunContext& context, auto&) {
          std::byte& at = *context.addresses->at(value);
          at = static_cast<std::byte>(std::to_integer<int>(at) + 1);
          return absl::OkStatus();
        });
      }
    }
    planned = plan(program).value();
    executor = create_lane_executor(program, planned, *device, {}).value();
  }
  Program program;
  std::vector<Tensor> x;
  Plan planned;
  std::unique_ptr<backend::Device> device = testing::create_device();
  std::unique_ptr<Executor> executor;
};

TEST(ManyLanesTest, EightRanksOfTenGroupsFinishAndSleepWhileTheyWait) {
  Waiting waiting;
  std::vector<std::unique_ptr<Meeting>> meetings;
  for (uint32_t group = 0; group < kGroups; ++group) meetings.push_back(std::make_unique<Meeting>(waiting));
  double used = 0;
  const auto look = [&] {  // By rank 0, for which all lanes of the others wait.
    waiting.until(static_cast<int>((kRanks - 1) * kGroups));
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // The time that is measured.
    used = cpu_seconds() - before;
  };
  std::vector<std::unique_ptr<Rank>> ranks;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<Rank>(
        meetings, rank == 0 ? std::function<void()>(look) : [] {}));
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&rank] { EXPECT_TRUE(rank->executor->run().ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(used, 0.03);
  int expected = 0;
  for (int round = 0; round < kRounds; ++round) expected = expected * static_cast<int>(kRanks) + 1;
  for (const auto& rank : ranks) {
    for (const Tensor& x : rank->x) {
      EXPECT_EQ(std::to_integer<int>(*rank->executor->address(x)), expected % 256);
    }
  }
}

}  // namespace
}  // namespace telar::engine
