#include "server/store/log_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

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
  EXPECT_EQ(logs.read(key, 0, 100)->data, std::string("hello world\0\n", 13));
  EXPECT_EQ(logs.read(key, 6, 3)->data, "wor");
  EXPECT_EQ(logs.read(key, 13, 100)->data, "");
  EXPECT_EQ(logs.read(key, 99, 100)->data, "");
  EXPECT_EQ(logs.path(key), scratch.path("logs") + "/job1/1.3.log");
}

TEST(LogStore, GoesOnAfterAReopen) {
  Scratch scratch;
  const LogKey key{"job1", 1, 0};
  EXPECT_EQ(LogStore(scratch.path("logs")).append(key, 0, "abc").value(), 3u);
  LogStore again(scratch.path("logs"));
  EXPECT_EQ(again.append(key, 7, "x").value(), 3u);
  EXPECT_EQ(again.append(key, 3, "d").value(), 4u);
  EXPECT_EQ(again.read({"job1", 2, 0}, 0, 10)->data, "");
}

TEST(LogStore, SaysWhichBytesAreMissing) {
  Scratch scratch;
  const LogKey key{"job1", 1, 0};
  {
    LogStore logs(scratch.path("logs"));
    EXPECT_EQ(logs.append(key, 0, "abc").value(), 3u);
    EXPECT_EQ(logs.skip(key, 5, 10).value(), 3u);  // It begins beyond the end.
    EXPECT_EQ(logs.skip(key, 3, 7).value(), 10u);
    EXPECT_EQ(logs.skip(key, 3, 7).value(), 10u);  // Again.
    EXPECT_EQ(logs.append(key, 10, "def").value(), 13u);
  }
  LogStore again(scratch.path("logs"));
  EXPECT_EQ(again.read(key, 0, 100)->data, "abc");
  EXPECT_EQ(again.read(key, 3, 100)->missing, 7u);
  EXPECT_EQ(again.read(key, 5, 100)->missing, 5u);
  EXPECT_EQ(again.read(key, 5, 100)->data, "");
  EXPECT_EQ(again.read(key, 10, 100)->data, "def");
  EXPECT_EQ(again.read(key, 10, 100)->missing, 0u);
  EXPECT_EQ(again.missing(key), 7u);
}

TEST(LogStore, ALogKeepsItsNewestBytesWhereTheyWere) {
  Scratch scratch;
  constexpr uint64_t kLimit = 256 << 10;
  LogStore logs(scratch.path("logs"), {.rank_bytes = kLimit});
  const LogKey key{"job1", 1, 0};
  uint64_t offset = 0;
  std::string all;
  for (int frame = 0; frame < 32; ++frame) {
    std::string data(64 << 10, static_cast<char>('a' + frame % 26));
    data[7] = static_cast<char>(frame);
    all += data;
    offset = logs.append(key, offset, data).value();
  }
  EXPECT_EQ(offset, all.size());
  struct stat info {};
  ASSERT_EQ(stat(logs.path(key).c_str(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), all.size());
  EXPECT_LE(static_cast<uint64_t>(info.st_blocks) * 512, kLimit + (128 << 10));
  LogStore again(scratch.path("logs"));
  const uint64_t gone = again.read(key, 0, 1)->missing;
  ASSERT_GT(gone, all.size() / 2);
  ASSERT_LT(gone, all.size());
  EXPECT_TRUE(again.read(key, gone, all.size())->data == all.substr(gone));
}

TEST(LogStore, TheOldestLogsGoWhenAllTogetherAreTooMany) {
  Scratch scratch;
  LogStore logs(scratch.path("logs"), {.total_bytes = 200 << 10});
  const std::string data(64 << 10, 'x');
  for (const char* job : {"a", "b", "c", "d"}) EXPECT_TRUE(logs.append({job, 1, 0}, 0, data).ok());
  EXPECT_EQ(logs.remove_old({}), 0u);  // Nothing is over.
  EXPECT_GT(logs.remove_old({"b", "a"}), 0u);
  EXPECT_EQ(logs.read({"b", 1, 0}, 0, 10)->missing, data.size());
  EXPECT_EQ(logs.read({"a", 1, 0}, 0, 10)->data, "xxxxxxxxxx");
  EXPECT_EQ(logs.remove_old({"b", "a"}), 0u);
  EXPECT_EQ(logs.append({"b", 1, 0}, data.size(), "y").value(), data.size() + 1);
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
