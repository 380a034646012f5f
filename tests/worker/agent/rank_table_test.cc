// How an end is told; the table at work is in worker_test.cc.
#include "worker/agent/rank_table.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace telar::agent {
namespace {

struct End {
  const char* name;
  std::optional<int> code;
  const char* events;
  const char* log;
  bool finished;
  int reported_code;
  v1::FailureClass failure;
  const char* message;
};

constexpr const char* kFinished = "{\"finished\":{\"step\":\"8\"}}\n";
constexpr const char* kInterrupted = "{\"finished\":{\"step\":\"8\",\"interrupted\":true}}\n";
constexpr const char* kData = "{\"failure\":{\"failureClass\":\"DATA\",\"message\":\"x.bin: short\"}}\n";
constexpr v1::FailureClass kNone = v1::FAILURE_CLASS_UNSPECIFIED;

class DescribeEnd : public testing::TestWithParam<End> {};

TEST_P(DescribeEnd, Tells) {
  const End& end = GetParam();
  std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  const RankDir directory(path);
  std::ofstream(directory.events_path()) << end.events;
  std::ofstream(directory.log_path()) << end.log;
  const auto status = describe_end(directory, end.code ? std::optional<RankExit>({*end.code, ""}) : std::nullopt);
  std::filesystem::remove_all(path);
  EXPECT_EQ(status.state(), v1::RankPlacement::EXITED);
  EXPECT_EQ(status.finished(), end.finished);
  EXPECT_EQ(status.exit_code(), end.reported_code);
  EXPECT_EQ(status.failure_class(), end.failure);
  EXPECT_EQ(status.message(), end.message);
}

constexpr const char* kUnseen = "the process ended unseen: its node restarted or its parent died";
INSTANTIATE_TEST_SUITE_P(
    All, DescribeEnd,
    testing::Values(
        End{"Finished", 0, kFinished, "", true, 0, kNone, ""},
        End{"Interrupted", 10, kInterrupted, "", false, 10, kNone, ""},
        End{"Failed", 22, kData, "log\n", false, 22, v1::DATA, "x.bin: short"},
        End{"FailedThenKilled", 137, kData, "", false, 137, v1::DATA, "x.bin: short"},
        End{"CodeOnly", 23, "", "", false, 23, v1::OUT_OF_MEMORY, "exit code 23"},
        End{"NoRetry", 11, "", "", false, 11, v1::CONFIG, "exit code 11"},
        End{"Unknown", 3, "", "a\nb\n", false, 3, v1::CRASH, "exit code 3; last line: b"},
        End{"Killed", 137, "", "", false, 137, v1::CRASH, "killed by signal 9 (SIGKILL)"},
        End{"CrashAfterFinishing", 139, kFinished, "", false, 139, v1::CRASH, "killed by signal 11 (SIGSEGV)"},
        End{"SilentZero", 0, "", "", false, 0, v1::INTERNAL, "exit code 0 without a word of having finished"},
        End{"Unseen", std::nullopt, "", "z\n", false, 137, v1::CRASH, kUnseen},
        End{"UnseenFinished", std::nullopt, kFinished, "", true, 0, kNone, ""},
        End{"UnseenInterrupted", std::nullopt, kInterrupted, "", false, 10, kNone, ""},
        End{"UnseenFailed", std::nullopt, kData, "", false, 22, v1::DATA, "x.bin: short"}),
    [](const testing::TestParamInfo<End>& one) { return one.param.name; });

}  // namespace
}  // namespace telar::agent
