#include "worker/agent/event_file.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace telar::agent {
namespace {

class EventFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
    path_ = folder_ + "/events.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void append(const std::string& text) { std::ofstream(path_, std::ios::app | std::ios::binary) << text; }

  std::string folder_, path_;
};

constexpr const char* kStep = "{\"step\":{\"step\":\"7\",\"loss\":\"NaN\"}}\n";

TEST_F(EventFileTest, LeavesAnUnfinishedLineUntilItIsComplete) {
  EventCursor cursor;
  EXPECT_TRUE(read_events(path_, cursor, 1000).empty());  // No file yet.
  append(std::string(kStep) + "{\"eval\":{\"st");
  EXPECT_EQ(read_events(path_, cursor, 1000).size(), 1u);
  EXPECT_TRUE(read_events(path_, cursor, 1000).empty());
  append("ep\":\"9\"}}\n");
  const auto events = read_events(path_, cursor, 1000);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].eval().step(), 9u);
  EXPECT_EQ(cursor.line, 2u);
  EXPECT_EQ(cursor.byte, std::filesystem::file_size(path_));
}

TEST_F(EventFileTest, ALineThatIsNoEventKeepsItsNumber) {
  append("rubbish\n\n{\"unknown\":1,\"step\":{\"step\":\"2\"}}\n");
  EventCursor cursor;
  const auto events = read_events(path_, cursor, 1000);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind_case(), v1::RankEvent::KIND_NOT_SET);
  EXPECT_EQ(events[2].step().step(), 2u);
}

TEST_F(EventFileTest, BatchesAreBoundedButNeverStuck) {
  for (int i = 0; i < 10; ++i) append(kStep);
  EventCursor cursor;
  EXPECT_EQ(read_events(path_, cursor, 1).size(), 1u);
  EXPECT_EQ(read_events(path_, cursor, 2 * std::string(kStep).size()).size(), 2u);
  EXPECT_EQ(read_events(path_, cursor, 100'000).size(), 7u);
}

TEST_F(EventFileTest, FindsALineAgain) {
  append("{}\n");
  append(kStep);
  append("{}");
  EXPECT_EQ(find_line(path_, 1).byte, 3u);
  EXPECT_EQ(find_line(path_, 0).byte, 0u);
  EXPECT_EQ(find_line(path_, 9).line, 2u);  // The incomplete one does not count.
}

TEST_F(EventFileTest, TheOutcomeIsInTheLastLines) {
  append(kStep);
  EXPECT_FALSE(read_outcome(path_).finished);
  append("{\"failure\":{\"failureClass\":\"NUMERIC\",\"message\":\"loss is NaN\"}}\n");
  EXPECT_TRUE(read_outcome(path_).failed);
  EXPECT_EQ(read_outcome(path_).failure.message(), "loss is NaN");
  append(kStep);
  EXPECT_FALSE(read_outcome(path_).failed);
  append("{\"finished\":{\"step\":\"8\"}}\n{\"sa");
  EXPECT_TRUE(read_outcome(path_).finished);
  append("mple\":{}}\n{\"finished\":{\"step\":\"8\",\"interrupted\":true}}\n");
  EXPECT_FALSE(read_outcome(path_).finished);
  EXPECT_TRUE(read_outcome(path_).interrupted);
}

TEST_F(EventFileTest, LastLogLineIsPrintableAndShort) {
  EXPECT_EQ(last_log_line(path_), "");
  append("first\n");
  append("bad \x01\xff\xfe end  \n\n\n");
  EXPECT_EQ(last_log_line(path_), "bad ??? end");
  append(std::string(5000, 'x'));
  EXPECT_EQ(last_log_line(path_), std::string(200, 'x') + "...");
}

}  // namespace
}  // namespace telar::agent
