#include "common/fault_point.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>

namespace telar {
namespace {

// What a process with that environment ends with: the environment is read once, so each has its own.
int end_of(const char* plan, const std::string& directory, const std::function<int()>& run) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TELAR_FAULT", plan, 1);
    if (!directory.empty()) setenv("TELAR_FAULT_DIR", directory.c_str(), 1);
    _exit(run());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int code(const char* point) { return static_cast<int>(fault_point(point).code()); }

constexpr int kUnavailable = static_cast<int>(absl::StatusCode::kUnavailable);
constexpr int kExhausted = static_cast<int>(absl::StatusCode::kResourceExhausted);

TEST(FaultPoint, IsInertElsewhereAndWithoutAPlan) {
  EXPECT_EQ(end_of("", "", [] { return code("a"); }), 0);
  EXPECT_EQ(end_of("a:error", "", [] { return code("b"); }), 0);
}

TEST(FaultPoint, StrikesOnceAtItsTurn) {
  EXPECT_EQ(end_of("a:error", "", [] { return code("a"); }), kUnavailable);
  EXPECT_EQ(end_of("a:enospc", "", [] { return code("a"); }), kExhausted);
  EXPECT_EQ(end_of("b:kill,a:error:3", "", [] { return code("a") + code("a") + 100 * code("a") / 100 + code("a"); }),
            kUnavailable);
  EXPECT_EQ(
      end_of("exit.json.begin:kill", "", [] { return static_cast<int>(fault_point("exit.json", "begin").code()); }),
      128 + SIGKILL);
}

TEST(FaultPoint, Delays) {
  EXPECT_EQ(end_of("a:delay50", "",
                   [] {
                     const auto start = std::chrono::steady_clock::now();
                     const int result = code("a");
                     return std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(50) ? result : 1;
                   }),
            0);
}

TEST(FaultPoint, StrikesOneProcessOfAll) {
  const std::string directory = testing::TempDir() + "fault_point." + std::to_string(getpid());
  std::filesystem::create_directories(directory);
  EXPECT_EQ(end_of("a:error", directory, [] { return code("a"); }), kUnavailable);
  EXPECT_TRUE(std::filesystem::exists(directory + "/a"));
  EXPECT_EQ(end_of("a:error", directory, [] { return code("a"); }), 0);
  std::filesystem::remove_all(directory);
}

TEST(FaultPoint, AnUnknownActionEndsTheProcess) {
  for (const char* plan : {"a", "a:explode", "a:kill:x", "a:delay", "a:kill:1:2"}) {
    EXPECT_EQ(end_of(plan, "", [] { return code("b"); }), 99) << plan;
  }
}

}  // namespace
}  // namespace telar
