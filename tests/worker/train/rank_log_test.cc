// A full disk does not end a run: its events wait, its log says what is missing.
#include "worker/train/rank_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "worker/train/event_log.h"
#include "worker/train/metrics_file.h"

namespace telar::train {
namespace {

class FullDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
    std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // From now on the descriptor writes there.
  static void turn(int file, const std::string& to) {
    const int other = open(to.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ASSERT_EQ(dup2(other, file), file);
    close(other);
  }
  std::string read(const std::string& path) const {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // The descriptor of that path; -1: none.
  static int file_of(const std::string& path) {
    for (int number = 3; number < 100; ++number) {
      std::error_code problem;
      const auto target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(number), problem);
      if (!problem && target == path) return number;
    }
    return -1;
  }
  static v1::RankEvent step(uint64_t number) {
    v1::RankEvent event;
    event.mutable_step()->set_step(number);
    return event;
  }

  std::string root_;
};

TEST_F(FullDisk, TheLogSaysHowMuchIsMissing) {
  const int file = open((root_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  RankLog log(file);
  log.write("one\n", 4);
  turn(file, "/dev/full");
  log.write("two\n", 4);
  log.write("three\n", 6);
  turn(file, root_ + "/log");
  log.write("four\n", 5);
  log.write("five\n", 5);
  EXPECT_EQ(log.take_lost(), 10u);
  EXPECT_EQ(log.take_lost(), 0u);
  turn(file, "/dev/full");
  log.write("six\n", 4);
  log.write("seven\n", 6);
  EXPECT_EQ(log.take_lost(), 10u);  // While the disk is full, too; a note that finds no room is no loss.
  close(file);
  EXPECT_EQ(read(root_ + "/log"),
            "one\n[telar: 10 bytes of this log are missing here: the disk was full]\nfour\nfive\n");
}

TEST_F(FullDisk, AnEventTellsWhatTheLogHasLost) {
  auto events = EventLog::open(root_ + "/events").value();
  uint64_t lost = 77;
  events->set_lost_log([&lost] { return std::exchange(lost, 0); });
  EXPECT_TRUE(events->write(step(1)).ok());
  EXPECT_TRUE(events->write(step(2)).ok());
  const std::string text = read(root_ + "/events");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  const size_t told = text.find("\"log_lost\":{\"bytes\":\"77\"}");
  EXPECT_NE(told, std::string::npos) << text;
  EXPECT_LT(told, text.find("\"step\":\"1\""));
}

TEST_F(FullDisk, TheCurveWaitsForRoom) {
  auto curve = MetricsFile::open(root_, 0).value();
  const int file = file_of(root_ + "/metrics.jsonl");
  ASSERT_GE(file, 0);
  const auto write = [&](uint64_t number) { return curve->write(step(number).step()); };
  EXPECT_TRUE(write(1).ok());
  turn(file, "/dev/full");
  EXPECT_TRUE(write(2).ok());
  EXPECT_TRUE(write(3).ok());
  turn(file, root_ + "/metrics.jsonl");
  EXPECT_TRUE(write(4).ok());
  std::ifstream written(root_ + "/metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(written, line);) {
    EXPECT_EQ(line.find("{\"step\":" + std::to_string(++lines) + ","), 0u) << line;
  }
  EXPECT_EQ(lines, 4);
}

// Whatever a crash or a person left in it: lines that are none of ours go, and nothing throws.
TEST_F(FullDisk, TheCurveGoesOnBehindWhatItCanRead) {
  std::ofstream(root_ + "/metrics.jsonl")
      << "{\"step\":1,\"loss\":2.5}\n{\"step\":\"1\"}\n{\"step\":-1}\n{\"step\":null}\n"
      << "[1]\n\n{\"note\":\"mine\"}\n{\"step\":3}\n{\"step\":2";
  ASSERT_TRUE(MetricsFile::open(root_, 2).value()->write(step(3).step()).ok());
  std::ifstream written(root_ + "/metrics.jsonl");
  std::string line, all;
  while (std::getline(written, line)) all += line.substr(0, line.find(',')) + "\n";
  EXPECT_EQ(all, "{\"step\":1\n{\"note\":\"mine\"}\n{\"step\":3\n");
}

TEST_F(FullDisk, EventsWaitForRoom) {
  auto events = EventLog::open(root_ + "/events").value();
  const int file = file_of(root_ + "/events");
  ASSERT_GE(file, 0);
  EXPECT_TRUE(events->write(step(1)).ok());
  turn(file, "/dev/full");
  EXPECT_TRUE(events->write(step(2)).ok());
  EXPECT_TRUE(events->write(step(3)).ok());
  turn(file, root_ + "/events");
  EXPECT_TRUE(events->write(step(4)).ok());
  const std::string text = read(root_ + "/events");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_LT(text.find("\"step\":\"2\""), text.find("\"step\":\"3\""));

  turn(file, "/dev/full");
  events->set_patience(std::chrono::milliseconds(200));
  v1::RankEvent last;
  last.mutable_finished()->set_step(4);
  EXPECT_FALSE(events->write(last).ok());  // Nobody would hear of it.
  turn(file, root_ + "/events");
}

}  // namespace
}  // namespace telar::train
