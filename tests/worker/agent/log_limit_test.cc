#include "worker/agent/log_limit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace telar::agent {
namespace {

class LogLimit : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    file_ = open(log().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ASSERT_GE(file_, 0);
  }
  void TearDown() override {
    close(file_);
    std::filesystem::remove_all(root_);
  }
  std::string log() const { return root_ + "/log"; }
  void append(size_t size) {
    std::string more(size, '\0');
    for (char& byte : more) byte = static_cast<char>('a' + all_.size() % 23), all_ += byte;
    ASSERT_EQ(write(file_, more.data(), more.size()), static_cast<ssize_t>(more.size()));
  }
  uint64_t on_disk() const {
    struct stat info {};
    stat(log().c_str(), &info);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }

  std::string root_, all_;
  int file_ = -1;
};

TEST_F(LogLimit, AShortLogIsLeftAlone) {
  append(100'000);
  limit_log(log(), 0, 200'000);
  const LogFile file(log());
  EXPECT_EQ(file.size(), 100'000u);
  EXPECT_EQ(file.read(10, 20).data, all_.substr(10, 20));
  EXPECT_EQ(file.read(99'990, 100).data, all_.substr(99'990));
  EXPECT_TRUE(file.read(100'000, 100).data.empty());
  EXPECT_EQ(file.read(100'000, 100).missing, 0u);
  EXPECT_EQ(LogFile(root_ + "/none").read(0, 10).missing, 0u);
}

TEST_F(LogLimit, WhatWasShippedGoesFirstAndLosesNothing) {
  append(1'000'000);
  limit_log(log(), 900'000, 400'000);
  if (on_disk() > 900'000) GTEST_SKIP() << "no holes on this file system";
  EXPECT_LE(on_disk(), 400'000u);
  const LogFile file(log());
  EXPECT_EQ(file.size(), 1'000'000u);
  EXPECT_TRUE(file.read(900'000, 1 << 20).data == all_.substr(900'000));
  append(1000);
  EXPECT_TRUE(file.read(900'000, 1 << 20).data == all_.substr(900'000));
}

TEST_F(LogLimit, WhatNobodyHasIsMissingAndNoByteOfItReadsAsZero) {
  append(1'000'000);
  constexpr uint64_t kShipped = 12'345;
  limit_log(log(), kShipped, 400'000);
  if (on_disk() > 900'000) GTEST_SKIP() << "no holes on this file system";
  EXPECT_LE(on_disk(), 400'000u);
  const LogFile file(log());
  std::string read;
  uint64_t missing = 0, offset = kShipped;
  for (;;) {
    const LogFile::Piece piece = file.read(offset, 64 << 10);
    if (piece.data.empty() && piece.missing == 0) break;
    EXPECT_TRUE(piece.data == all_.substr(offset, piece.data.size())) << offset;
    missing += piece.missing;
    offset += piece.data.size() + piece.missing;
  }
  EXPECT_EQ(offset, all_.size());
  EXPECT_GT(missing, 500'000u);
  limit_log(log(), kShipped, 400'000);  // Again: there is nothing to do.
  EXPECT_EQ(file.read(all_.size() - 100, 100).data, all_.substr(all_.size() - 100));
}

}  // namespace
}  // namespace telar::agent
