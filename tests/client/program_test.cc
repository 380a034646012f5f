// The real program as a process of its own: its exit status, its streams, its signals.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "tests/client/fake_coordinator.h"

namespace telar::client {
namespace {

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() : directory_(testing::TempDir() + "telar-program-" + std::to_string(getpid()) + "-") {}

  // posix_spawn, as a plain fork is not safe beside gRPC's threads.
  pid_t start(std::vector<std::string> arguments) {
    const char* bin = std::getenv("TELAR_BIN_DIR");
    const std::string program = std::string(bin == nullptr ? "build/release/bin" : bin) + "/telar";
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& one : arguments) argv.push_back(one.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, 1, (directory_ + "out").c_str(), flags, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, (directory_ + "err").c_str(), flags, 0600);
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environ), 0) << program;
    posix_spawn_file_actions_destroy(&actions);
    return child;
  }
  int finish(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  int run(const std::vector<std::string>& arguments) { return finish(start(arguments)); }
  std::string out() { return contents(directory_ + "out"); }
  std::string err() { return contents(directory_ + "err"); }

  const std::string directory_;
};

TEST_F(ProgramTest, WrongUseIsTwo) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{},
                                             {"nothing"},
                                             {"submit"},
                                             {"list", "--nothing"},
                                             {"-o", "xml", "list"},
                                             {"--timeout", "soon", "list"},
                                             {"--coordinator", "nowhere", "list"},
                                             {"submit", "a.yaml", "--watch", "--wait"},
                                             {"logs", "j", "--rank", "-1"},
                                             {"nodes", "cordon"},
                                             {"update", "j", "--time-limit", "soon"},
                                             {"--coordinator", "nowhere", "explain", "model.hed"},
                                             {"submit", "/no/such/file.yaml"}}) {
    EXPECT_EQ(run(wrong), 2) << (wrong.empty() ? "no arguments" : wrong[0]) << ": " << err();
    EXPECT_EQ(out(), "");
  }
}

TEST_F(ProgramTest, HelpNamesTheExitCodes) {
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_NE(out().find("5 coordinator unreachable"), std::string::npos) << out();
  EXPECT_EQ(run({"submit", "--help"}), 0);
  EXPECT_NE(out().find("--dry-run"), std::string::npos);
}

TEST_F(ProgramTest, UnreachableIsFiveAndNamesTheAddress) {
  EXPECT_EQ(run({"list", "--coordinator", "127.0.0.1:1"}), 5);
  EXPECT_TRUE(err().starts_with("error: cannot reach the coordinator at 127.0.0.1:1")) << err();
}

TEST_F(ProgramTest, GlobalOptionsOnEitherSideAndFromTheEnvironment) {
  FakeCoordinator coordinator;
  EXPECT_EQ(run({"--coordinator", coordinator.address(), "version", "-o", "json"}), 0) << err();
  EXPECT_NE(out().find("\"version\": \"9.8.7\""), std::string::npos) << out();
  setenv("TELAR_COORDINATOR", coordinator.address().c_str(), 1);
  EXPECT_EQ(run({"nodes", "--no-headers", "-o", "wide"}), 0) << err();
  EXPECT_TRUE(out().starts_with("node-a  READY")) << out();
  unsetenv("TELAR_COORDINATOR");
}

TEST_F(ProgramTest, FieldsAreExplainedWithoutACoordinatorAndJobsWithOne) {
  EXPECT_EQ(run({"--coordinator", "nowhere", "explain", "model.heads"}), 0) << err();
  EXPECT_EQ(run({"--coordinator", "nowhere", "explain"}), 0) << err();
  FakeCoordinator coordinator;
  coordinator.service.jobs["projects/default/jobs/j-1"].set_name("projects/default/jobs/j-1");
  EXPECT_EQ(run({"explain", "j-1", "--coordinator", coordinator.address()}), 0) << err();
  EXPECT_TRUE(out().starts_with("Job:         j-1\n")) << out();
}

TEST_F(ProgramTest, NodesAloneListsAndWithAWordBelowItDoesThat) {
  FakeCoordinator coordinator;
  EXPECT_EQ(run({"nodes", "drain", "a", "--reason", "its fan", "--coordinator", coordinator.address()}), 0) << err();
  EXPECT_EQ(out(), "a DRAINING\n");
  EXPECT_EQ(coordinator.nodes.calls, std::vector<std::string>{"drain a: its fan"});
  EXPECT_EQ(run({"nodes", "--coordinator", coordinator.address()}), 0) << err();
  EXPECT_NE(out().find("node-a"), std::string::npos);
  EXPECT_EQ(run({"completion", "bash"}), 0);
  for (const char* word : {"cordon", "uncordon", "drain", "--reason", "queues", "update", "--time-limit"}) {
    EXPECT_NE(out().find(word), std::string::npos) << word;
  }
}

TEST_F(ProgramTest, CtrlCDetachesAndTheJobGoesOn) {
  FakeCoordinator coordinator;
  v1::Job& job = coordinator.service.jobs["projects/default/jobs/j-1"];
  job.set_name("projects/default/jobs/j-1");
  job.set_state(v1::Job::RUNNING);
  coordinator.service.hold_streams = true;
  const pid_t child = start({"--coordinator", coordinator.address(), "watch", "j-1"});
  coordinator.service.wait_for_streams(1);
  kill(child, SIGINT);
  EXPECT_EQ(finish(child), 0);
  EXPECT_EQ(err(), "detached; job goes on: telar watch j-1\n");
  EXPECT_TRUE(coordinator.service.cancels.empty());
}

TEST_F(ProgramTest, OtherSignalsEndIt) {
  FakeCoordinator coordinator;
  v1::Job& job = coordinator.service.jobs["projects/default/jobs/j-1"];
  job.set_name("projects/default/jobs/j-1");
  job.set_state(v1::Job::RUNNING);
  coordinator.service.hold_streams = true;
  const pid_t child = start({"--coordinator", coordinator.address(), "watch", "j-1"});
  coordinator.service.wait_for_streams(1);
  kill(child, SIGTERM);
  EXPECT_EQ(finish(child), 128 + SIGTERM);
}

TEST_F(ProgramTest, DataCommandsNeedNoCoordinator) {
  const std::string input = directory_ + "in.txt", set = directory_ + "set";
  std::ofstream(input) << "hello";
  EXPECT_EQ(run({"--coordinator", "nowhere", "data", "prepare", input, "--out", set}), 0) << err();
  EXPECT_EQ(run({"data", "check", set, "-o", "json"}), 0) << err();
  EXPECT_NE(out().find("\"tokens\": 6"), std::string::npos) << out();
  EXPECT_EQ(run({"data", "peek", set, "--document", "0", "--tokens", "2"}), 0) << err();
  EXPECT_EQ(out(), "--- document 0, token 0 of 6\nhe\n");
  EXPECT_EQ(run({"data", "stats", set}), 0) << err();
  std::ofstream(set + "/shard-00000.bin", std::ios::app) << "x";
  EXPECT_EQ(run({"data", "check", set}), 9);  // Damaged.
  EXPECT_EQ(run({"data", "prepare", directory_ + "none", "--out", set + "2"}), 4);
  EXPECT_EQ(run({"data"}), 2);
  EXPECT_EQ(run({"data", "prepare", input}), 2);
  EXPECT_EQ(run({"data", "peek", set, "--document", "0", "--position", "0"}), 2);
  std::filesystem::remove_all(set);
}

TEST_F(ProgramTest, CompletionIsValidShell) {
  EXPECT_EQ(run({"completion", "bash"}), 0);
  EXPECT_NE(out().find("submit) words="), std::string::npos) << out();
  const std::string check = "bash -n " + directory_ + "out";
  EXPECT_EQ(std::system(check.c_str()), 0);
}

}  // namespace
}  // namespace telar::client
