#include "worker/flight/wait_clock.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace telar::flight {
namespace {

TEST(WaitClock, CountsCallsWithoutWorkBesideThem) {
  WaitClock clock(1'000);
  clock.enter_work(1'000);
  clock.enter_call(2'000);  // Beside work: no waiting.
  EXPECT_EQ(clock.waited(3'000), 0u);
  clock.leave_work(4'000);
  EXPECT_EQ(clock.waited(4'500), 500u);  // Of what is under way.
  clock.enter_call(5'000);
  clock.leave_call(6'000);
  clock.enter_work(7'000);
  EXPECT_EQ(clock.waited(9'000), 3'000u);
  clock.leave_call(9'500);
  clock.leave_work(9'600);
  EXPECT_EQ(clock.waited(20'000), 3'000u);  // Idle is no waiting either.
}

TEST(WaitClock, WorksAtAnyTimeOfTheMachine) {
  for (const uint64_t start : {uint64_t{0}, (uint64_t{1} << 47) + 5, (uint64_t{1} << 48) - 500, uint64_t{1} << 62}) {
    WaitClock clock(start);
    clock.enter_call(start + 100);
    clock.leave_call(start + 1'100);  // Over the end of what the word holds, too.
    EXPECT_EQ(clock.waited(start + 5'000), 1'000u) << start;
  }
}

TEST(WaitClock, ATimeThatComesLateTakesNothingBack) {
  WaitClock clock(0);
  clock.enter_call(1'000);
  clock.leave_call(3'000);
  clock.enter_call(2'500);  // Read before that, told behind it.
  clock.leave_call(4'000);
  EXPECT_EQ(clock.waited(9'000), 3'000u);
}

TEST(WaitClock, KeepsCountAmongThreads) {
  WaitClock clock(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&clock, t] {
      for (uint64_t i = 1; i <= 20'000; ++i) {
        if (t % 2 == 0) {
          clock.enter_work(i);
          clock.leave_work(i);
        } else {
          clock.enter_call(i);
          clock.leave_call(i);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(clock.waited(30'000), 20'000u);
  const uint64_t before = clock.waited(30'000);
  clock.enter_call(40'000);  // Nothing is left entered: this alone counts.
  clock.leave_call(41'000);
  EXPECT_EQ(clock.waited(50'000), before + 1'000);
}

}  // namespace
}  // namespace telar::flight
