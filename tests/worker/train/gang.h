// Gangs of real rank processes in a folder of their own, without a coordinator: they meet at a rendezvous in the test.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/rendezvous.h"
#include "worker/checkpoint/run_files.h"
#include "worker/plan/resolve.h"

namespace telar::train::testing {

namespace fs = std::filesystem;

inline std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// One rank process. Killed with its object.
class RankProcess {
 public:
  RankProcess(const std::string& program, const std::vector<std::string>& arguments, const std::string& log) {
    std::vector<std::string> words = {std::string(std::getenv("TELAR_BIN_DIR")) + "/" + program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0) << words[0];
    posix_spawn_file_actions_destroy(&actions);
  }
  ~RankProcess() {
    if (!code_) end(SIGKILL);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  void signal(int number) {
    if (!code_) kill(pid_, number);
  }
  int end(int number) {
    signal(number);
    return wait();
  }
  // The exit code, 128 + n for a signal; nothing while it runs.
  std::optional<int> poll() { return collect(WNOHANG); }
  int wait() { return *collect(0); }

 private:
  std::optional<int> collect(int options) {
    int status = 0;
    if (!code_ && waitpid(pid_, &status, options) == pid_) {
      code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    return code_;
  }
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// A folder with text to learn from, and jobs of a few milliseconds a step.
class GangTest : public ::testing::Test {
 protected:
  GangTest() {
    char name[] = "/tmp/telar_gang_test_XXXXXX";
    root_ = mkdtemp(name);
    std::ofstream text(root_ / "text.txt");
    for (int i = 0; i < 20000; ++i) text << "It was the season of light number " << i * 37 % 101 << ".\n";
  }
  ~GangTest() override {
    if (HasFailure()) std::cout << read_text(root_ / "log.txt").substr(0, 20000);
    fs::remove_all(root_);
  }

  v1::JobSpec spec(uint64_t steps, uint32_t ranks = 2) {
    v1::JobSpec made;
    made.set_name("gang");
    made.set_seed(5);
    made.mutable_model()->set_architecture(v1::LLAMA);
    made.mutable_model()->set_layers(1);
    made.mutable_model()->set_hidden(16);
    made.mutable_model()->set_heads(2);
    made.mutable_model()->set_ffn(24);
    made.mutable_data()->add_train((root_ / "text.txt").string());
    made.mutable_data()->set_eval_fraction(0.5);
    made.mutable_resources()->set_devices(ranks);
    made.mutable_parallel()->set_data(ranks);
    made.mutable_batch()->set_global(4);
    made.mutable_batch()->set_micro(2);
    made.mutable_batch()->set_sequence_length(16);
    made.mutable_optimizer()->set_learning_rate(3e-3);
    made.mutable_schedule()->set_steps(steps);
    made.mutable_eval()->set_sequences(8);
    return made;
  }

  // Starts the next epoch of the run; `arguments` by rank.
  using Gang = std::vector<std::unique_ptr<RankProcess>>;
  Gang start(const std::string& run, const v1::JobSpec& wanted, const std::string& program = "telar-rank",
             const std::map<uint32_t, std::vector<std::string>>& arguments = {}) {
    ++epoch_;
    Gang gang;
    v1::RankPlan plan;
    *plan.mutable_spec() = wanted;
    EXPECT_THAT(plan::resolve(*plan.mutable_spec(), v1::ResourceSpec::CPU), ::testing::IsEmpty());
    plan.set_job("projects/default/jobs/gang");
    plan.set_epoch(epoch_);
    plan.set_world_size(wanted.resources().devices());
    plan.set_threads(1);
    plan.mutable_device()->set_kind(v1::ResourceSpec::CPU);
    plan.set_run_dir((root_ / run).string());
    plan.set_listen_host("127.0.0.1");
    if (plan.world_size() > 1) plan.set_rendezvous_address(rendezvous_.address());
    for (uint32_t rank = 0; rank < plan.world_size(); ++rank) {
      plan.set_rank(rank);
      std::string json;
      EXPECT_TRUE(google::protobuf::util::MessageToJsonString(plan, &json).ok());
      const std::string path = (root_ / absl::StrCat("plan-", rank, ".json")).string() + absl::StrCat(".", epoch_);
      std::ofstream(path) << json;
      std::vector<std::string> words = {"--plan", path, "--events", events_path(rank)};
      if (const auto more = arguments.find(rank); more != arguments.end()) {
        words.insert(words.end(), more->second.begin(), more->second.end());
      }
      gang.push_back(std::make_unique<RankProcess>(program, words, (root_ / "log.txt").string()));
    }
    return gang;
  }
  // Until one has ended.
  static void await_any(Gang& gang) {
    const auto ended = [](const auto& rank) { return rank->poll().has_value(); };
    while (std::none_of(gang.begin(), gang.end(), ended)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static std::vector<int> wait_all(Gang& gang) {
    std::vector<int> codes;
    for (auto& rank : gang) codes.push_back(rank->wait());
    return codes;
  }

  // The step that the epoch was told it may publish and has not given its name; 0: none.
  uint64_t decided_only(const std::string& run) {
    const auto decided = rendezvous_.checkpoints.decided("projects/default/jobs/gang");
    if (!decided || decided->first != epoch_) return 0;
    return fs::exists(root_ / run / "ckpt" / checkpoint::temp_name(decided->second, epoch_)) ? decided->second : 0;
  }
  // Of the epoch that was started last.
  std::string events_path(uint32_t rank) const {
    return (root_ / absl::StrCat("events-", epoch_, "-", rank, ".jsonl")).string();
  }
  std::vector<nlohmann::json> events(uint32_t rank, const std::string& kind) const {
    std::vector<nlohmann::json> found;
    std::ifstream file(events_path(rank));
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_discarded() && json.contains(kind)) found.push_back(json[kind]);
    }
    return found;
  }
  // Waits until a rank has told of so many events of a kind; false when it ended before.
  bool await_events(Gang& gang, uint32_t rank, const std::string& kind, size_t count) const {
    while (events(rank, kind).size() < count) {
      if (gang[rank]->poll()) return events(rank, kind).size() >= count;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  // The losses of metrics.jsonl as they were printed, a step each.
  std::vector<std::string> losses(const std::string& run) const {
    std::vector<std::string> found;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("loss")) found.push_back(json["step"].dump() + " " + json["loss"].dump());
    }
    return found;
  }
  std::string checkpoint(const std::string& run, uint64_t step) const {
    char name[32];
    std::snprintf(name, sizeof name, "step-%08d", static_cast<int>(step));
    return (root_ / run / "ckpt" / name).string();
  }

  fs::path root_;
  fakes::FakeRendezvous rendezvous_;
  uint64_t epoch_ = 0;
};

// Rounds of a test that plays many cases: few, or with TELAR_CRASH_ALL=1 all of them.
inline bool all_crashes() { return std::getenv("TELAR_CRASH_ALL") != nullptr; }

}  // namespace telar::train::testing
