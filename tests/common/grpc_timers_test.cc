// How long gRPC's timers may be late; that they are looked after then: tests/faults/test_clock.py.
#include "common/grpc_timers.h"

#include <gtest/gtest.h>

namespace telar {
namespace {

using std::chrono::duration_cast;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

class LatenessTest : public testing::Test {
 protected:
  // Whole seconds from now on, after `passed` and with the wall's clock set by `set`.
  int64_t after(milliseconds passed, milliseconds set = milliseconds(0)) {
    steady_ += passed;
    wall_ += passed + set;
    return duration_cast<seconds>(lateness_.look(steady_, wall_)).count();
  }

  Clock::Steady steady_{hours(50)};
  Clock::Wall wall_{hours(24 * 365 * 57)};
  GrpcTimers::Lateness lateness_;
};

TEST_F(LatenessTest, IsAsLongAsTheClockWasSetBack) {
  EXPECT_EQ(after(seconds(0)), 0);
  EXPECT_EQ(after(seconds(1)), 0);
  EXPECT_EQ(after(seconds(1), -hours(1)), 3600);
  EXPECT_EQ(after(minutes(59)), 60);
  EXPECT_EQ(after(seconds(61)), 0);
  EXPECT_EQ(after(hours(2)), 0);
}

TEST_F(LatenessTest, OfTwoStepsIsTheirSum) {
  after(seconds(0));
  after(seconds(1), -minutes(10));
  EXPECT_EQ(after(minutes(5), -minutes(10)), 15 * 60 + 1);
}

TEST_F(LatenessTest, IsNoneWhenItIsSetForwardOrSlewed) {
  after(seconds(0));
  EXPECT_EQ(after(seconds(1), hours(1)), 0);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(after(seconds(1), -milliseconds(1)), 0);
}

}  // namespace
}  // namespace telar
