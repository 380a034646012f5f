#include "worker/checkpoint/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/worker/checkpoint/memory_files.h"

namespace telar::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr milliseconds kLong = std::chrono::minutes(5);

TEST(Board, AMessageWakesWhoWaits) {
  MemoryFiles files;
  Board reader(files, "/board");
  std::thread writer([&] {
    Board board(files, "/board");
    EXPECT_TRUE(board.make().ok());
    EXPECT_TRUE(board.post("a", "first").ok());
    EXPECT_TRUE(board.post("b", "second").ok());
  });
  Names names;
  EXPECT_TRUE(reader.wait([](const Names& seen) { return seen.size() == 2; }, kLong, names).ok());
  writer.join();
  EXPECT_THAT(names, ElementsAre("a", "b"));
  EXPECT_EQ(reader.read("b").value(), "second");
}

TEST(Board, WaitingEndsAndSaysWhatWasThere) {
  MemoryFiles files;
  Board board(files, "/board");
  Names names;
  const auto never = [](const Names&) { return false; };
  EXPECT_EQ(board.wait(never, milliseconds(1), names).code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(board.make().ok());
  ASSERT_TRUE(board.post("a", "").ok());
  const auto status = board.wait(never, milliseconds(1), names);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/board"));
  EXPECT_THAT(names, ElementsAre("a"));
}

TEST(Board, HalfAMessageIsNone) {
  MemoryFiles files;
  Board board(files, "/board");
  ASSERT_TRUE(board.make().ok());
  // Create, write, sync, close, and only then the rename that shows it.
  for (int64_t at = 0; at < 5; ++at) {
    files.plan(MemoryFiles::Fault::kIoError, at);
    EXPECT_FALSE(board.post("a", "text").ok());
    Names names;
    EXPECT_FALSE(board.wait([](const Names& seen) { return !seen.empty(); }, {}, names).ok());
  }
}

TEST(Board, TakenAwayIsAnError) {
  MemoryFiles files;
  Board board(files, "/board");
  ASSERT_TRUE(board.make().ok());
  ASSERT_TRUE(board.post("a", "").ok());
  Names names;
  ASSERT_TRUE(board.wait([](const Names& seen) { return !seen.empty(); }, kLong, names).ok());
  ASSERT_TRUE(remove_with_files(files, "/board").ok());
  const auto status = board.wait([](const Names& seen) { return seen.empty(); }, kLong, names);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace telar::checkpoint
