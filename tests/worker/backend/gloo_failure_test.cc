// What the survivors see when a peer's process dies or stops. The ranks are real processes: they are forked from a
// parent that never starts a thread, and meet through files.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/backend/gloo_group.h"

namespace telar::backend::cpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  absl::Status put(const std::string& key, const std::string& value) override {
    const std::filesystem::path temporary = folder_ / (name(key) + "." + std::to_string(getpid()));
    std::ofstream(temporary, std::ios::binary) << value;
    std::filesystem::rename(temporary, folder_ / name(key));
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> get(std::span<const std::string> keys,
                                               std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      while (!std::filesystem::exists(folder_ / name(key))) {
        if (std::chrono::steady_clock::now() > deadline) return absl::DeadlineExceededError("missing key " + key);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      values.push_back(read_file(folder_ / name(key)));
    }
    return values;
  }

 private:
  static std::string name(std::string key) {
    for (char& letter : key) letter = letter == '/' ? '-' : letter;
    return key;
  }
  const std::filesystem::path folder_;
};

class GlooFailure : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "gloo_failure_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    for (pid_t child : children_) {
      if (child == 0) continue;  // Reaped.
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  // Forks the ranks; each says "ready.<group>.<r>" after its first collective of a group, of which it makes one after
  // the other on a thread a group, and a survivor writes the last error to "error.<group>.<r>".
  void start(int size, const std::vector<Group>& groups, std::chrono::milliseconds call_timeout, int64_t elements) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        be_a_rank(rank, groups, call_timeout, elements);
        _exit(0);
      }
      children_.push_back(child);
    }
    for (const Group& group : groups) {
      for (int rank : group.ranks) wait_for("ready." + group.name + "." + std::to_string(rank));
    }
  }

  void be_a_rank(int rank, const std::vector<Group>& groups, std::chrono::milliseconds call_timeout, int64_t elements) {
    FileStore store(folder_);
    std::vector<Group> mine;
    for (const Group& group : groups) {
      if (std::ranges::count(group.ranks, rank) > 0) mine.push_back(group);
    }
    auto made = create_gloo_communicators(
        store, {.rank = rank, .listen_host = "127.0.0.1", .call_timeout = call_timeout}, mine);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < mine.size(); ++i) {
      threads.emplace_back([&, i] {
        const std::string place = mine[i].name + "." + std::to_string(rank);
        absl::Status status = made.status();
        NoStream stream;
        std::vector<float> x(elements);
        for (int64_t call = 0; status.ok(); ++call) {
          status = (*made)[i]->all_reduce(stream, ReduceOp::kSum, InOut(view_of(x)));
          if (status.ok() && call == 0) status = store.put("ready." + place, "");
        }
        (void)store.put("error." + place, status.ToString());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // The content of a file of the folder, once it is there.
  std::string wait_for(const std::string& key) {
    const std::vector<std::string> keys = {key};
    auto values = FileStore(folder_).get(keys, std::chrono::seconds(60));
    EXPECT_TRUE(values.ok()) << values.status();
    return values.ok() ? values->front() : "";
  }

  // A rank that has seen the error must end by itself, not by a signal.
  void expect_clean_end(int rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children_[rank], &status, 0), children_[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": wait status " << status;
    children_[rank] = 0;
  }

  std::filesystem::path folder_;
  std::vector<pid_t> children_;
};

class GlooKilledPeer : public GlooFailure, public ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Elements, GlooKilledPeer, ::testing::Values(100, 4000000));

TEST_P(GlooKilledPeer, FailsTheSurvivorsWithinSeconds) {
  start(3, {{"world", {0, 1, 2}}}, std::chrono::seconds(60), GetParam());
  const auto begin = std::chrono::steady_clock::now();
  kill(children_[1], SIGKILL);
  for (int rank : {0, 2}) {
    const std::string place = "UNAVAILABLE: communicator 'world', all_reduce, rank " + std::to_string(rank) + " of 3";
    EXPECT_THAT(wait_for("error.world." + std::to_string(rank)), AllOf(HasSubstr(place), HasSubstr("with rank ")));
    expect_clean_end(rank);
  }
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begin).count(), 5.0);
}

// Survivors are busy in a group that the dead rank was not in, too: that ends as well.
TEST_P(GlooKilledPeer, FailsAllGroupsOfTheSurvivorsWithinSeconds) {
  start(3, {{"world", {0, 1, 2}}, {"left", {0, 1}}, {"living", {2, 0}}, {"right", {1, 2}}}, std::chrono::seconds(60),
        GetParam());
  const auto begin = std::chrono::steady_clock::now();
  kill(children_[1], SIGKILL);
  for (const char* place : {"world.0", "left.0", "living.0", "world.2", "living.2", "right.2"}) {
    EXPECT_THAT(wait_for("error." + std::string(place)), HasSubstr("UNAVAILABLE: communicator '")) << place;
  }
  for (int rank : {0, 2}) expect_clean_end(rank);
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begin).count(), 5.0);
}

TEST_F(GlooFailure, AStoppedPeerIsADeadlineNamingIt) {
  start(2, {{"world", {0, 1}}}, std::chrono::milliseconds(1500), 1000000);
  kill(children_[1], SIGSTOP);
  EXPECT_THAT(
      wait_for("error.world.0"),
      AllOf(HasSubstr("DEADLINE_EXCEEDED: communicator 'world', all_reduce, rank 0 of 2"), HasSubstr("with rank 1")));
  expect_clean_end(0);
  // Woken, it finds its peer gone.
  kill(children_[1], SIGCONT);
  EXPECT_THAT(wait_for("error.world.1"), HasSubstr("communicator 'world', all_reduce, rank 1 of 2: with rank 0"));
  expect_clean_end(1);
}

// The survivors are busy in a group without the stopped rank: that ends with the other.
TEST_F(GlooFailure, AStoppedPeerEndsAllGroups) {
  start(3, {{"world", {0, 1, 2}}, {"pair", {0, 2}}}, std::chrono::milliseconds(1500), 1000000);
  kill(children_[1], SIGSTOP);
  for (const char* place : {"world.0", "world.2", "pair.0", "pair.2"}) {
    EXPECT_THAT(wait_for("error." + std::string(place)), HasSubstr("communicator '")) << place;
  }
  for (int rank : {0, 2}) expect_clean_end(rank);
}

}  // namespace
}  // namespace telar::backend::cpu
