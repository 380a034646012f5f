#include "common/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <set>

namespace telar {
namespace {

TEST(Process, IdsAreOfTheirAlphabetAndDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = random_id(8);
    EXPECT_EQ(id.size(), 8u);
    EXPECT_EQ(id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789"), std::string::npos) << id;
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(Process, UuidsAreOfVersionFour) {
  const std::string uuid = uuid4();
  ASSERT_EQ(uuid.size(), 36u);
  EXPECT_EQ(uuid[14], '4');
  EXPECT_NE(std::string("89ab").find(uuid[19]), std::string::npos) << uuid;
  EXPECT_NE(uuid, uuid4());
}

TEST(Process, SignalsWaitForWhoAsks) {
  block_signals();
  ASSERT_EQ(kill(getpid(), SIGHUP), 0);
  EXPECT_EQ(wait_for_signal(), SIGHUP);
}

TEST(Process, VersionBeginsWithANumber) { EXPECT_TRUE(isdigit(version().at(0))) << version(); }

}  // namespace
}  // namespace telar
