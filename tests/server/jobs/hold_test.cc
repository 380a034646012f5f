// The lock, and who is told how long it was held.
#include "server/jobs/hold.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace telar::server::jobs {
namespace {

struct Told final : HoldObserver {
  explicit Told(std::mutex* watched) : mutex(watched) {}
  void on_hold(Doing doing, double took) override {
    was_free = was_free && mutex->try_lock();
    mutex->unlock();
    all.emplace_back(doing, took);
  }
  std::mutex* const mutex;
  bool was_free = true;
  std::vector<std::pair<Doing, double>> all;
};

TEST(HoldTest, TellsOfEachTimeOnceItIsOver) {
  std::mutex mutex;
  Told told(&mutex);
  {
    Hold hold(mutex, Doing::kList, &told);
    std::thread([&] { EXPECT_FALSE(mutex.try_lock()); }).join();
    EXPECT_TRUE(told.all.empty());
    hold.unlock();
    ASSERT_EQ(told.all.size(), 1u);
    hold.lock();
    hold.turn_to(Doing::kRound);
    ASSERT_EQ(told.all.size(), 2u);
    EXPECT_EQ(told.all[1].first, Doing::kList);
  }
  ASSERT_EQ(told.all.size(), 3u);
  EXPECT_EQ(told.all[2].first, Doing::kRound);
  for (const auto& one : told.all) EXPECT_GE(one.second, 0);
  EXPECT_TRUE(told.was_free);
}

TEST(HoldTest, CountsTheTimeInItsHandsOnly) {
  std::mutex mutex;
  Told told(&mutex);
  const auto start = std::chrono::steady_clock::now();
  double outside = 0;
  {
    Hold hold(mutex, Doing::kLook, &told);
    hold.unlock();
    const auto free = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - free < std::chrono::milliseconds(20)) {
    }
    outside = std::chrono::duration<double>(std::chrono::steady_clock::now() - free).count();
    hold.lock();
  }
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LE(told.all[0].second + told.all[1].second, all - outside);
}

TEST(HoldTest, EveryDoingHasAName) {
  EXPECT_EQ(static_cast<size_t>(Doing::kCount) + 1, kDoings.size());
  for (const char* name : kDoings) EXPECT_STRNE(name, "");
}

}  // namespace
}  // namespace telar::server::jobs
