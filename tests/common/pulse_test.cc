#include "common/pulse.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/fake_clock.h"

namespace telar {
namespace {

using std::chrono::seconds;

TEST(Pulse, IsGoneWhenTheLoopStands) {
  fakes::FakeClock clock;
  Pulse pulse(&clock, seconds(30));
  clock.advance(seconds(30));
  EXPECT_TRUE(pulse.check().ok());
  clock.advance(seconds(2));
  EXPECT_EQ(pulse.check().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(pulse.check().message()).find("for 32 s"), std::string::npos) << pulse.check();
  pulse.beat();
  EXPECT_TRUE(pulse.check().ok());
}

}  // namespace
}  // namespace telar
