#include "server/store/log_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/server/scratch.h"

namespace telar::server::store {
namespace {

using tests::Scratch;

TEST(LogStore, DropsWhatItHoldsAndRefusesGaps) {
  Scratch scratch;
  LogStore logs(scratch.path("logs"));
  const LogKey key{"job1", 3, 1};
  EXPECT_EQ(logs.append(key, 0, "hello ").value(), 6u);
  EXPECT_EQ(logs.append(key, 0, "hello ").value(), 6u);  // Again.
  EXPECT_EQ(logs.append(key, 3, "lo wor").value(), 9u);  // Overlap.
  EXPECT_EQ(logs.append(key, 20, "later").value(), 9u);  // Gap.
  EXPECT_EQ(logs.append(key, 9, std::string("ld\0\n", 4)).value(), 13u);
  EXPECT_EQ(logs.read(key, 0, 100).value(), std::string("hello world\0\n", 13));
  EXPECT_EQ(logs.read(key, 6, 3).value(), "wor");
  EXPECT_EQ(logs.read(key, 13, 100).value(), "");
  EXPECT_EQ(logs.read(key, 99, 100).value(), "");
  EXPECT_EQ(logs.path(key), scratch.path("logs") + "/job1/1.3.log");
}

TEST(LogStore, GoesOnAfterAReopen) {
  Scratch scratch;
  const LogKey key{"job1", 1, 0};
  EXPECT_EQ(LogStore(scratch.path("logs")).append(key, 0, "abc").value(), 3u);
  LogStore again(scratch.path("logs"));
  EXPECT_EQ(again.append(key, 7, "x").value(), 3u);
  EXPECT_EQ(again.append(key, 3, "d").value(), 4u);
  EXPECT_EQ(again.read({"job1", 2, 0}, 0, 10).value(), "");
}

TEST(LogStore, NamesThePathThatItCannotWrite) {
  Scratch scratch;
  std::ofstream(scratch.path("logs")) << "a file where the folder should be";
  LogStore logs(scratch.path("logs"));
  const auto result = logs.append({"job1", 1, 0}, 0, "x");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find(scratch.path("logs/job1/0.1.log")), std::string::npos) << result.status();
}

TEST(LogStore, AFullDiskIsAnErrorAndLeavesNoHalfWrite) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  Scratch scratch;
  LogStore logs(scratch.path("logs"));
  std::filesystem::create_directories(scratch.path("logs/job1"));
  std::filesystem::create_symlink("/dev/full", scratch.path("logs/job1/0.1.log"));
  const auto result = logs.append({"job1", 1, 0}, 0, "x");
  EXPECT_FALSE(result.ok());
}

}  // namespace
}  // namespace telar::server::store
