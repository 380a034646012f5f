#include "worker/flight/wait_clock.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace telar::flight {
namespace {

// A clock that stands.
auto at(uint64_t time) {
  return [time] { return time; };
}

TEST(WaitClock, CountsCallsWithoutWorkBesideThem) {
  WaitClock clock(1'000);
  clock.enter_work(at(1'000));
  clock.enter_call(at(2'000));  // Beside work: no waiting.
  EXPECT_EQ(clock.waited(3'000), 0u);
  clock.leave_work(at(4'000));
  EXPECT_EQ(clock.waited(4'500), 500u);  // Of what is under way.
  clock.enter_call(at(5'000));
  clock.leave_call(at(6'000));
  clock.enter_work(at(7'000));
  EXPECT_EQ(clock.waited(9'000), 3'000u);
  clock.leave_call(at(9'500));
  clock.leave_work(at(9'600));
  EXPECT_EQ(clock.waited(20'000), 3'000u);  // Idle is no waiting either.
}

TEST(WaitClock, WorksAtAnyTimeOfTheMachine) {
  for (const uint64_t start : {uint64_t{0}, (uint64_t{1} << 47) + 5, (uint64_t{1} << 48) - 500, uint64_t{1} << 62}) {
    WaitClock clock(start);
    clock.enter_call(at(start + 100));
    clock.leave_call(at(start + 1'100));  // Over the end of what the word holds, too.
    EXPECT_EQ(clock.waited(start + 5'000), 1'000u) << start;
  }
}

TEST(WaitClock, ATimeThatComesLateTakesNothingBack) {
  WaitClock clock(0);
  clock.enter_call(at(1'000));
  clock.leave_call(at(3'000));
  clock.enter_call(at(2'500));  // Read before that, told behind it.
  clock.leave_call(at(4'000));
  EXPECT_EQ(clock.waited(9'000), 3'000u);
}

TEST(WaitClock, TheTimeOfWorkWithoutCallsIsNotAskedFor) {
  WaitClock clock(0);
  int asked = 0;
  const auto counted = [&asked] { return static_cast<uint64_t>(++asked) * 1'000; };
  for (int i = 0; i < 10; ++i) {
    clock.enter_work(counted);
    clock.leave_work(counted);
  }
  EXPECT_EQ(asked, 0);
  clock.enter_call(counted);
  clock.enter_work(counted);
  clock.leave_work(counted);
  clock.leave_call(counted);
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(clock.waited(9'000), 2'000u);
}

TEST(WaitClock, KeepsCountAmongThreads) {
  WaitClock clock(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&clock, t] {
      for (uint64_t i = 1; i <= 20'000; ++i) {
        if (t % 2 == 0) {
          clock.enter_work(at(i));
          clock.leave_work(at(i));
        } else {
          clock.enter_call(at(i));
          clock.leave_call(at(i));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(clock.waited(30'000), 20'000u);
  const uint64_t before = clock.waited(30'000);
  clock.enter_call(at(40'000));  // Nothing is left entered: this alone counts.
  clock.leave_call(at(41'000));
  EXPECT_EQ(clock.waited(50'000), before + 1'000);
}

}  // namespace
}  // namespace telar::flight
