#include "server/jobs/straggler.h"

#include <gmock/gmock.h>

namespace telar::server::jobs {
namespace {

std::vector<GangMember> gang(uint64_t step, std::vector<double> own) {
  std::vector<GangMember> members;
  for (size_t i = 0; i < own.size(); ++i) {
    GangMember member;
    member.rank = static_cast<uint32_t>(i);
    member.node = i < 2 ? "a" : "b";
    member.pace.set_step(step);
    member.pace.set_own_seconds(own[i]);
    members.push_back(member);
  }
  return members;
}

TEST(Stragglers, OneIsFlaggedWhenItIsSlowTwentyStepsOn) {
  Stragglers stragglers;
  EXPECT_FALSE(stragglers.look(gang(100, {1, 1, 1, 1.3})));
  EXPECT_DOUBLE_EQ(stragglers.ratio(), 1.3);
  EXPECT_FALSE(stragglers.look(gang(119, {1, 1, 1, 1.3})));
  EXPECT_EQ(stragglers.message(gang(119, {1, 1, 1, 1.3})), "");
  EXPECT_TRUE(stragglers.look(gang(120, {1, 1, 1, 1.3})));
  EXPECT_EQ(stragglers.message(gang(120, {1, 1, 1, 1.3})),
            "rank 3 on node b takes 1.3 s of its own a step, 1.30 times the gang's median, since step 100");
  EXPECT_FALSE(stragglers.look(gang(140, {1, 1, 1, 1.3})));  // Nothing new.
}

TEST(Stragglers, AMomentOfSlownessIsNone) {
  Stragglers stragglers;
  stragglers.look(gang(100, {1, 1, 1, 2}));
  stragglers.look(gang(110, {1, 1, 1, 1.1}));
  EXPECT_FALSE(stragglers.look(gang(125, {1, 1, 1, 1.4})));
  EXPECT_FALSE(stragglers.look(gang(130, {1, 1, 1, 1.4})));
}

TEST(Stragglers, OneGetsWellBelowTheLowerBound) {
  Stragglers stragglers;
  stragglers.look(gang(100, {1, 1, 1.5}));
  EXPECT_TRUE(stragglers.look(gang(120, {1, 1, 1.5})));
  EXPECT_FALSE(stragglers.look(gang(140, {1, 1, 1.15})));  // Between the bounds it stays.
  EXPECT_NE(stragglers.message(gang(140, {1, 1, 1.15})), "");
  EXPECT_TRUE(stragglers.look(gang(160, {1, 1, 1.05})));
  EXPECT_EQ(stragglers.message(gang(160, {1, 1, 1.05})), "");
}

TEST(Stragglers, OfTwoTheSlowOneIsComparedWithTheOther) {
  Stragglers stragglers;
  stragglers.look(gang(20, {1.3, 1}));
  EXPECT_TRUE(stragglers.look(gang(40, {1.3, 1})));
}

TEST(Stragglers, WithoutAllOwnTimesNobodyKnows) {
  Stragglers stragglers;
  for (const uint64_t step : {20, 40, 60}) EXPECT_FALSE(stragglers.look(gang(step, {1, 0, 9})));
  EXPECT_DOUBLE_EQ(stragglers.ratio(), 0);
  EXPECT_FALSE(stragglers.look(gang(80, {1})));
}

}  // namespace
}  // namespace telar::server::jobs
