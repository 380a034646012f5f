// The program itself: exit codes, the port file, kill -9 and back.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/channel.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "telar/v1/jobs.grpc.pb.h"
#include "tests/server/jobs/fake_worker.h"
#include "tests/server/scratch.h"

extern char** environ;

namespace telar::server {
namespace {

using std::chrono::seconds;

std::string slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class Coordinator : public testing::Test {
 protected:
  void TearDown() override {
    if (pid_ > 0) end(SIGKILL);
  }
  void start(std::vector<std::string> arguments) {
    const char* folder = std::getenv("TELAR_BIN_DIR");
    const std::string program = std::string(folder == nullptr ? "build/release/bin" : folder) + "/telar-coordinator";
    arguments.insert(arguments.begin(), program);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, scratch_.path("stderr").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
    ASSERT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, pointers.data(), environ), 0) << program;
    posix_spawn_file_actions_destroy(&actions);
  }
  void serve(const std::string& listen = "127.0.0.1:0") {
    std::remove(ports().c_str());
    start({"--data", scratch_.path("data"), "--listen", listen, "--http", "127.0.0.1:0", "--port-file", ports()});
    const auto deadline = std::chrono::steady_clock::now() + seconds(30);
    while (slurp(ports()).empty()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << slurp(scratch_.path("stderr"));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    address_ = nlohmann::json::parse(slurp(ports()))["listen"];
  }
  int end(int signal = 0) {
    if (signal != 0) kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string ports() const { return scratch_.path("ports.json"); }

  tests::Scratch scratch_;
  pid_t pid_ = 0;
  std::string address_;
};

TEST_F(Coordinator, SaysWhyItDoesNotStart) {
  start({"--listen", "nowhere"});
  EXPECT_EQ(end(), 2);
  EXPECT_NE(slurp(scratch_.path("stderr")).find("--listen: 'nowhere'"), std::string::npos);

  start({"--data", "/proc/nowhere"});
  EXPECT_EQ(end(), 4);
  EXPECT_NE(slurp(scratch_.path("stderr")).find("/proc/nowhere"), std::string::npos);
}

TEST_F(Coordinator, RefusesATakenPortAndATakenStore) {
  serve();
  const pid_t first = pid_;
  start({"--data", scratch_.path("other"), "--listen", address_, "--http", "127.0.0.1:0"});
  EXPECT_EQ(end(), 3);
  EXPECT_NE(slurp(scratch_.path("stderr")).find(address_), std::string::npos);
  start({"--data", scratch_.path("data"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"});
  EXPECT_EQ(end(), 4);
  EXPECT_NE(slurp(scratch_.path("stderr")).find("another coordinator"), std::string::npos);
  pid_ = first;
  EXPECT_EQ(end(SIGTERM), 0);
}

TEST_F(Coordinator, AKillLosesNothingAcknowledged) {
  serve();
  v1::CreateJobRequest request;
  *request.mutable_spec() = tests::small_spec(2);
  request.mutable_spec()->mutable_resources()->set_wait_for_capacity(true);
  v1::Job job;
  {
    grpc::ClientContext context;
    request.set_request_id("r1");
    const grpc::Status status = v1::Jobs::NewStub(dial(address_))->CreateJob(&context, request, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(end(SIGKILL), 128 + SIGKILL);
  serve();
  auto jobs = v1::Jobs::NewStub(dial(address_));
  v1::Job again;
  grpc::ClientContext context;
  ASSERT_TRUE(jobs->CreateJob(&context, request, &again).ok());
  EXPECT_EQ(again.SerializeAsString(), job.SerializeAsString());
  v1::ListJobsResponse list;
  grpc::ClientContext list_context;
  ASSERT_TRUE(jobs->ListJobs(&list_context, {}, &list).ok());
  ASSERT_EQ(list.jobs_size(), 1);
  EXPECT_EQ(list.jobs(0).name(), job.name());
  EXPECT_EQ(list.jobs(0).create_time().seconds(), job.create_time().seconds());
  EXPECT_EQ(end(SIGTERM), 0);
}

}  // namespace
}  // namespace telar::server
