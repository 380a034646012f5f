// Runs in this process, on the CPU, each in a folder of its own.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/fakes/rendezvous.h"
#include "worker/plan/resolve.h"
#include "worker/train/failure.h"
#include "worker/train/run.h"

namespace telar::train::testing {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

inline std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    char name[] = "/tmp/telar_run_test_XXXXXX";
    root_ = mkdtemp(name);
    std::ofstream text(root_ / "text.txt");
    for (int i = 0; i < 300; ++i) text << "It was the season of light number " << i * 37 % 101 << ".\n";
  }
  ~RunTest() override { fs::remove_all(root_); }

  v1::RankPlan plan(const std::string& run_dir, uint64_t steps) {
    v1::RankPlan made;
    made.set_job("projects/default/jobs/test");
    made.set_epoch(++epoch_);
    made.set_world_size(1);
    made.set_threads(1);
    made.mutable_device()->set_kind(v1::ResourceSpec::CPU);
    made.set_run_dir((root_ / run_dir).string());
    v1::JobSpec& spec = *made.mutable_spec();
    spec.set_name("test");
    spec.set_seed(5);
    spec.mutable_model()->set_architecture(v1::LLAMA);
    spec.mutable_model()->set_layers(2);
    spec.mutable_model()->set_hidden(32);
    spec.mutable_model()->set_heads(2);
    spec.mutable_model()->set_ffn(48);
    spec.mutable_data()->add_train((root_ / "text.txt").string());
    spec.mutable_batch()->set_global(4);
    spec.mutable_batch()->set_micro(2);
    spec.mutable_batch()->set_sequence_length(16);
    spec.mutable_optimizer()->set_learning_rate(3e-3);
    spec.mutable_schedule()->set_steps(steps);
    spec.mutable_checkpoint()->set_every_steps(10);
    spec.mutable_checkpoint()->set_keep(3);
    spec.mutable_eval()->set_sequences(8);
    EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
    return made;
  }
  // The plan of one of two ranks that meet at `rendezvous`.
  v1::RankPlan plan_of_two(v1::RankPlan made, uint32_t rank, const fakes::FakeRendezvous& rendezvous) {
    made.set_world_size(2);
    made.set_rank(rank);
    made.set_listen_host("127.0.0.1");
    made.set_rendezvous_address(rendezvous.address());
    made.mutable_spec()->mutable_resources()->set_devices(2);
    made.mutable_spec()->mutable_parallel()->set_data(2);
    EXPECT_THAT(plan::resolve(*made.mutable_spec(), v1::ResourceSpec::CPU), IsEmpty());
    return made;
  }

  absl::StatusOr<RunOutcome> run_plan(const v1::RankPlan& made, const std::atomic<bool>& stop = kGoOn,
                                      Replica::Execution execution = Replica::Execution::kLanes) {
    auto events = EventLog::open((root_ / "events.jsonl").string());
    EXPECT_TRUE(events.ok()) << events.status();
    return run(made, **events, stop, execution);
  }

  // Asked to stop when all is ready for the first step, and not before.
  absl::StatusOr<RunOutcome> stop_at_first_step(const v1::RankPlan& made) {
    auto events = EventLog::open((root_ / "events.jsonl").string());
    EXPECT_TRUE(events.ok()) << events.status();
    std::atomic<bool> stop{false};
    RunSeams seams;
    seams.may_begin = [&] {
      stop = true;
      return true;
    };
    return run(made, **events, stop, Replica::Execution::kLanes, seams);
  }
  // The events of a kind, of all runs so far.
  std::vector<nlohmann::json> events(const std::string& kind) {
    std::vector<nlohmann::json> found;
    std::ifstream file(root_ / "events.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains(kind)) found.push_back(json[kind]);
    }
    return found;
  }

  size_t durable_saves() {
    const auto all = events("checkpoint");
    return std::ranges::count_if(all, [](const auto& one) { return one["state"] == "DURABLE"; });
  }

  // Runs `made` in the folder "broken", and stops it once 13 steps or more are told of.
  void run_and_stop(const v1::RankPlan& made) {
    std::atomic<bool> stop{false};
    std::thread stopper([&] {
      while (losses("broken").size() < 13) std::this_thread::yield();
      stop = true;
    });
    const auto outcome = run_plan(made, stop);
    stopper.join();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_TRUE(outcome->interrupted) << "too fast to be stopped";
  }

  // The losses of metrics.jsonl as they were printed, a step each.
  std::vector<std::string> losses(const std::string& run_dir) {
    std::vector<std::string> found;
    std::ifstream file(root_ / run_dir / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("loss")) found.push_back(json["step"].dump() + " " + json["loss"].dump());
    }
    return found;
  }
  // One member of metrics.jsonl's lines as it was printed, "null" where a line has none.
  std::vector<std::string> column(const std::string& run_dir, const std::string& key) {
    std::vector<std::string> found;
    std::ifstream file(root_ / run_dir / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("loss")) found.push_back(json.value(key, nlohmann::json()).dump());
    }
    return found;
  }
  nlohmann::json manifest(const std::string& run_dir, const std::string& step) {
    return nlohmann::json::parse(read(root_ / run_dir / "ckpt" / ("step-" + step) / "manifest.json"));
  }
  fs::path shard(const std::string& run_dir, const std::string& step) {
    return root_ / run_dir / "ckpt" / ("step-" + step) / "shard-00000.safetensors";
  }

  static inline const std::atomic<bool> kGoOn{false};
  fs::path root_;
  uint64_t epoch_ = 0;
};

}  // namespace telar::train::testing
