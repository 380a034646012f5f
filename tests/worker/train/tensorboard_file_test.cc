#include "worker/train/tensorboard_file.h"

#include <gmock/gmock.h>

#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/crc32c.h"
#include "tests/fakes/fake_clock.h"
#include "worker/train/curves.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class TensorBoardFileTest : public ::testing::Test {
 protected:
  TensorBoardFileTest() {
    char name[] = "/tmp/telar_tensorboard_test_XXXXXX";
    root_ = mkdtemp(name);
    plan_.set_run_dir(root_.string());
    plan_.set_epoch(1);
    plan_.mutable_spec()->mutable_output()->set_tensorboard(true);
  }
  ~TensorBoardFileTest() override { fs::remove_all(root_); }

  std::unique_ptr<TensorBoardFile> open(uint64_t start_step) {
    auto file = TensorBoardFile::open(plan_, start_step, &clock_);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  // In the order that readers take them.
  std::vector<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) names.insert(entry.path().filename().string());
    return {names.begin(), names.end()};
  }
  std::vector<tensorboard::Event> events(const std::string& name) const {
    std::ifstream in(root_ / name, std::ios::binary);
    std::stringstream content;
    content << in.rdbuf();
    const std::string text = content.str();
    std::vector<tensorboard::Event> found;
    for (size_t at = 0; at < text.size();) {
      uint64_t length = 0;
      std::memcpy(&length, text.data() + at, sizeof(length));
      found.emplace_back();
      EXPECT_TRUE(found.back().ParseFromString(text.substr(at + 12, length)));
      EXPECT_EQ(tensorboard_record(text.substr(at + 12, length)), text.substr(at, length + 16));
      at += length + 16;
    }
    return found;
  }
  static std::map<std::string, float> scalars(const tensorboard::Event& event) {
    std::map<std::string, float> found;
    for (const auto& value : event.summary().value()) {
      EXPECT_TRUE(value.has_simple_value()) << value.tag();
      found[value.tag()] = value.simple_value();
    }
    return found;
  }

  fs::path root_;
  v1::RankPlan plan_;
  fakes::FakeClock clock_;
};

// The CRC-32C of "abc" is 364b3fb7.
TEST_F(TensorBoardFileTest, ARecordIsLengthAndDataWithTheirMaskedSums) {
  const std::string record = tensorboard_record("abc");
  ASSERT_EQ(record.size(), 8u + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
  const uint32_t crc = crc32c("abc");
  EXPECT_EQ(crc, 0x364b3fb7u);
  uint32_t masked = 0;
  std::memcpy(&masked, record.data() + 15, 4);
  const uint32_t rotated = masked - 0xa282ead8u;
  EXPECT_EQ(rotated >> 17 | rotated << 15, crc);
}

TEST_F(TensorBoardFileTest, BeginsWithItsVersionAndTheStepToCome) {
  open(20);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_TRUE(files()[0].starts_with("events.out.tfevents.1800000000.")) << files()[0];
  const auto found = events(files()[0]);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].file_version(), "brain.Event:2");
  EXPECT_EQ(found[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(found[1].step(), 21);
  EXPECT_EQ(found[1].wall_time(), 1'800'000'000);
}

TEST_F(TensorBoardFileTest, ALaterStartSortsBehindEvenWhereItsClockIsBehind) {
  open(0);
  const std::string first = files()[0];
  clock_.set_wall(-std::chrono::minutes(5));
  plan_.set_epoch(2);
  open(20);
  plan_.set_epoch(10);
  open(30);
  ASSERT_EQ(files().size(), 3u);
  EXPECT_EQ(files()[0], first);
  EXPECT_EQ(events(files()[1])[1].step(), 21);
  EXPECT_EQ(events(files()[2])[1].step(), 31);
}

TEST_F(TensorBoardFileTest, ScalarsHaveTheTagsThatPeopleExpect) {
  const auto file = open(0);
  v1::StepReport step;
  step.set_step(7);
  step.set_loss(2.5);
  step.set_grad_norm(0.5);
  step.set_learning_rate(0.001);
  step.set_tokens_per_second(1000);
  step.set_mfu(0.25);
  step.set_seconds(2);
  step.add_phases()->set_phase("data_wait");
  step.mutable_phases(0)->set_seconds(0.125);
  step.mutable_account()->add_parts()->set_phase("forward");
  step.mutable_account()->mutable_parts(0)->set_seconds(0.75);
  step.mutable_account()->mutable_pipeline()->set_window_seconds(2);
  step.mutable_account()->mutable_pipeline()->set_steady_idle_seconds(0.5);
  EXPECT_TRUE(file->write(step).ok());
  v1::EvalReport eval;
  eval.set_step(7);
  eval.set_loss(3);
  eval.add_sources()->set_name("web");
  eval.mutable_sources(0)->set_loss(4);
  EXPECT_TRUE(file->write(eval).ok());
  v1::CheckpointReport save;
  save.set_step(7);
  save.set_seconds(1.5);
  save.set_state(v1::CheckpointReport::STAGED);
  EXPECT_TRUE(file->write(save).ok());  // Tells nothing.
  save.set_state(v1::CheckpointReport::DURABLE);
  EXPECT_TRUE(file->write(save).ok());
  const auto found = events(files()[0]);
  ASSERT_EQ(found.size(), 5u);
  const std::map<std::string, float> expected = {{"train/loss", 2.5f},
                                                 {"train/grad_norm", 0.5f},
                                                 {"train/learning_rate", 0.001f},
                                                 {"train/skipped", 0.f},
                                                 {"train/consumed_samples", 0.f},
                                                 {"throughput/step_seconds", 2.f},
                                                 {"throughput/tokens_per_second", 1000.f},
                                                 {"throughput/mfu", 0.25f},
                                                 {"phases/data_wait", 0.125f},
                                                 {"account/forward", 0.75f},
                                                 {"pipeline/bubble", 0.25f}};
  EXPECT_EQ(scalars(found[2]), expected);
  EXPECT_EQ(found[2].step(), 7);
  EXPECT_EQ(scalars(found[3]), (std::map<std::string, float>{{"eval/loss", 3.f}, {"eval/source/web", 4.f}}));
  EXPECT_EQ(scalars(found[4]).at("checkpoint/save_seconds"), 1.5f);
}

TEST_F(TensorBoardFileTest, OnlyWhereItIsAskedFor) {
  plan_.mutable_spec()->clear_output();
  ASSERT_TRUE(Curves::open(plan_, v1::RankStarted()).ok());
  EXPECT_THAT(files(), ElementsAre("metrics.jsonl"));
}

// A limit on the size of files, which a step's scalars reach sooner than its line of metrics.jsonl.
TEST_F(TensorBoardFileTest, WhereItCannotBeWrittenTheRunGoesOn) {
  auto curves = Curves::open(plan_, v1::RankStarted());
  ASSERT_TRUE(curves.ok()) << curves.status();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 1500;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  bool all_well = true;
  for (uint64_t i = 1; i <= 8; ++i) {
    v1::StepReport step;
    step.set_step(i);
    for (const char* phase : {"data_wait", "device", "peers", "checkpoint_stall", "host"}) {
      step.add_phases()->set_phase(phase);
    }
    all_well = all_well && (*curves)->write(step).ok();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(all_well);
  std::ifstream metrics(root_ / "metrics.jsonl");
  size_t lines = 0;
  for (std::string line; std::getline(metrics, line);) ++lines;
  EXPECT_EQ(lines, 8u);
  EXPECT_LE(fs::file_size(root_ / files()[0]), 1500u);
}

}  // namespace
}  // namespace telar::train
