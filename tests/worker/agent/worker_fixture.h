// A real telar-worker process against a fake coordinator, with fake_rank for ranks.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <google/protobuf/util/time_util.h>
#include <gtest/gtest.h>

#include "tests/fakes/fake_coordinator.h"
#include "worker/agent/process.h"
#include "worker/agent/rank_dir.h"

namespace telar::agent {

inline std::string bin_dir() {
  const char* given = getenv("TELAR_BIN_DIR");
  return given != nullptr ? given : std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds longest = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline std::string make_temp_dir() {
  std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
  return mkdtemp(path.data()) == nullptr ? "" : path;
}

class WorkerTest : public testing::Test {
 protected:
  using Fake = fakes::FakeCoordinator;
  static constexpr const char* kJob = "projects/default/jobs/j1";

  void SetUp() override {
    root_ = make_temp_dir();
    ASSERT_FALSE(root_.empty());
  }

  // The clean-state oracle of every test: nothing that a daemon started may be left.
  void TearDown() override {
    coordinator_.assign({});
    if (pid_ == 0) start_worker();
    EXPECT_TRUE(coordinator_.wait([](const Fake& fake) {
      return !fake.heartbeats().empty() && fake.heartbeats().back().ranks().empty();
    })) << log();
    end_worker(SIGTERM);
    EXPECT_TRUE(eventually([&] { return processes_of_this_test().empty(); })) << log();
    for (const auto& entry : std::filesystem::directory_iterator(state_path() + "/finished")) {
      const auto process = RankDir(entry.path().string()).read_process();
      EXPECT_FALSE(process && !process->cgroup.empty() && std::filesystem::exists(process->cgroup)) << process->cgroup;
    }
    std::filesystem::remove_all(root_);
  }

  void start_worker(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {bin_dir() + "/telar-worker",
                                          "--coordinator",
                                          coordinator_.address(),
                                          "--node",
                                          "node-a",
                                          "--state",
                                          state_path(),
                                          "--rank-program",
                                          rank_program_,
                                          "--cpu-devices",
                                          "2",
                                          "--device-kind",
                                          "cpu",
                                          "--spawner-idle",
                                          "0.3",
                                          "--port-file",
                                          root_ + "/ports.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    pid_ = spawn(arguments, root_ + "/worker.log");
  }
  // Waits until it has ended; -1 when it does not. 128 + n for signal n.
  int end_worker(int signal) {
    kill(pid_, signal);
    return wait_worker();
  }
  int wait_worker() {
    const int code = wait_process(pid_);
    pid_ = 0;
    return code;
  }

  static int spawn(std::vector<std::string>& arguments, const std::string& log) {
    std::vector<char*> pointers;
    for (std::string& text : arguments) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    int pid = 0;
    EXPECT_EQ(posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }
  static int wait_process(int pid) {
    int status = 0;
    if (!eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; })) return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  static v1::Assignment assignment(const std::string& script, uint64_t epoch = 1, uint32_t rank = 0,
                                   v1::Assignment::Desired desired = v1::Assignment::RUN, int grace_ms = 5000) {
    v1::Assignment one;
    one.set_desired(desired);
    *one.mutable_grace() = google::protobuf::util::TimeUtil::MillisecondsToDuration(grace_ms);
    v1::RankPlan& plan = *one.mutable_plan();
    plan.set_job(kJob);
    plan.set_epoch(epoch);
    plan.set_rank(rank);
    plan.set_world_size(2);
    plan.mutable_device()->set_kind(v1::ResourceSpec::CPU);
    plan.mutable_device()->set_index(rank);
    plan.mutable_spec()->set_name(script);
    return one;
  }

  bool wait_running(uint64_t epoch = 1, uint32_t rank = 0) {
    return coordinator_.wait([&](const Fake& fake) {
      const v1::RankStatus* status = fake.status(epoch, rank);
      return status != nullptr && status->state() == v1::RankPlacement::RUNNING;
    });
  }
  // Waits for EXITED with all output shipped; an empty status when it does not come.
  v1::RankStatus wait_over(uint64_t epoch = 1, uint32_t rank = 0) {
    v1::RankStatus result;
    coordinator_.wait([&](const Fake& fake) {
      const v1::RankStatus* status = fake.status(epoch, rank);
      if (status == nullptr || status->state() != v1::RankPlacement::EXITED || !status->output_shipped()) return false;
      result = *status;
      return true;
    });
    return result;
  }
  bool wait_events(size_t count, uint64_t epoch = 1) {
    return coordinator_.wait([&](const Fake& fake) { return fake.output(epoch).events.size() >= count; });
  }
  // Every event once and in order, every log byte once: what the rank's files hold is what the coordinator has.
  void expect_output_is_whole(uint64_t epoch = 1, uint32_t rank = 0) {
    const Fake::Output output = coordinator_.locked([&](const Fake& fake) { return fake.output(epoch, rank); });
    EXPECT_EQ(output.log_gaps, 0);
    EXPECT_EQ(output.event_gaps, 0);
    EXPECT_TRUE(output.log == read_file(rank_path(epoch, rank) + "/log").value_or("unreadable"))
        << output.log.size() << " bytes arrived";
    uint64_t step = 0;
    for (const v1::RankEvent& event : output.events) {
      if (event.has_step()) {
        EXPECT_EQ(event.step().step(), ++step);
      }
    }
    const std::string lines = read_file(rank_path(epoch, rank) + "/events.jsonl").value_or("");
    EXPECT_EQ(output.events.size(), static_cast<size_t>(std::count(lines.begin(), lines.end(), '\n')));
  }

  // The body of a page of the daemon, with its head; empty when there is no answer.
  std::string http_get(const std::string& path) const {
    const std::string text = read_file(root_ + "/ports.json").value_or("");
    const size_t host = text.find("127.0.0.1:");
    if (host == std::string::npos) return "";
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(atoi(text.c_str() + host + 10)));
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    std::string page;
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
        send(connection, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
      char block[4096];
      for (ssize_t size = 0; (size = recv(connection, block, sizeof(block), 0)) > 0;) {
        page.append(block, static_cast<size_t>(size));
      }
    }
    close(connection);
    return page;
  }

  std::string state_path() const { return root_ + "/state"; }
  std::string rank_path(uint64_t epoch = 1, uint32_t rank = 0) const {
    return state_path() + "/ranks/j1/" + std::to_string(epoch) + "/" + std::to_string(rank);
  }
  std::string log() const { return read_file(root_ + "/worker.log").value_or("no log"); }
  int read_pid(const std::string& path) const { return atoi(read_file(path).value_or("0").c_str()); }
  static bool runs(int pid) {
    const auto id = identify(pid);
    return id && alive(*id);
  }

  // Every living process whose command line or environment names this test's directory.
  std::vector<int> processes_of_this_test() const {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const int pid = atoi(entry.path().filename().c_str());
      if (pid <= 1 || pid == getpid()) continue;
      const std::string text = read_file(entry.path().string() + "/cmdline").value_or("") +
                               read_file(entry.path().string() + "/environ").value_or("");
      if (text.find(root_) != std::string::npos && runs(pid)) found.push_back(pid);
    }
    return found;
  }

  std::string root_;
  std::string rank_program_ = bin_dir() + "/fake_rank";
  Fake coordinator_;
  int pid_ = 0;
};

}  // namespace telar::agent
