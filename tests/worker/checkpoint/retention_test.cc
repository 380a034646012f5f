#include "worker/checkpoint/retention.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/checkpoint/memory_files.h"
#include "tests/worker/checkpoint/state.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::string path_of(uint64_t step) { return std::string(kRun) + "/ckpt/" + step_name(step); }

std::vector<uint64_t> steps_in(FileSystem& files) {
  std::vector<uint64_t> steps;
  const std::vector<Published> published = list_published(files, kRun).value();
  for (const Published& one : published) steps.push_back(one.step);
  std::reverse(steps.begin(), steps.end());
  return steps;
}

std::vector<uint64_t> gone(const std::vector<Candidate>& candidates, const RetentionRule& rule) {
  std::vector<uint64_t> steps;
  for (const size_t at : superfluous(candidates, rule)) steps.push_back(candidates[at].step);
  return steps;
}

TEST(Superfluous, WhatNoRuleWants) {
  const std::vector<Candidate> all = {{10, 3.0}, {20, 1.0}, {30, {}, true}, {40, 2.0}, {50, {}}, {60, 5.0}};
  EXPECT_THAT(gone(all, {}), IsEmpty());
  EXPECT_THAT(gone(all, {.keep = 1}), ElementsAre(10, 20, 40, 50));
  EXPECT_THAT(gone(all, {.keep = 2}), ElementsAre(10, 20, 40));
  EXPECT_THAT(gone(all, {.keep = 2, .keep_every = 20}), ElementsAre(10));
  EXPECT_THAT(gone(all, {.keep = 2, .keep_best = 1}), ElementsAre(10, 40));
  EXPECT_THAT(gone(all, {.keep = 2, .keep_best = 2}), ElementsAre(10));
  EXPECT_THAT(gone(all, {.keep = 9}), IsEmpty());
  EXPECT_THAT(gone({}, {.keep = 1}), IsEmpty());
}

TEST(Superfluous, OfEqualLossesTheNewerIsBetter) {
  EXPECT_THAT(gone({{10, 1.0}, {20, 1.0}, {30, {}}}, {.keep = 1, .keep_best = 1}), ElementsAre(10));
}

// Against the definition, one candidate at a time.
TEST(Superfluous, IsWhatTheDefinitionSays) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Candidate> all(random() % 9);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].step = 5 * i + 5;
      if (random() % 2 == 0) all[i].eval_loss = static_cast<double>(random() % 4);
      all[i].pinned = random() % 5 == 0;
    }
    std::shuffle(all.begin(), all.end(), random);
    const RetentionRule rule{static_cast<uint32_t>(1 + random() % 3), random() % 2 * 20,
                             static_cast<uint32_t>(random() % 3)};
    std::vector<uint64_t> want;
    for (const Candidate& one : all) {
      const auto newer = std::count_if(all.begin(), all.end(), [&](const Candidate& o) { return o.step > one.step; });
      const auto better = std::count_if(all.begin(), all.end(), [&](const Candidate& o) {
        return o.eval_loss && one.eval_loss &&
               (*o.eval_loss < *one.eval_loss || (*o.eval_loss == *one.eval_loss && o.step > one.step));
      });
      const bool stays = one.pinned || newer < rule.keep || (rule.keep_every > 0 && one.step % rule.keep_every == 0) ||
                         (one.eval_loss && better < rule.keep_best);
      if (!stays) want.push_back(one.step);
    }
    std::sort(want.begin(), want.end());
    ASSERT_EQ(gone(all, rule), want);
  }
}

TEST(Retain, KeepsTheNewestTheBestMilestonesAndPins) {
  MemoryFiles files;
  const RetentionRule rule{.keep = 1, .keep_every = 40, .keep_best = 1};
  const double losses[] = {5, 3, 4, 6, 2, 7};
  std::vector<std::string> removed;
  for (uint64_t i = 0; i < 6; ++i) {
    const auto saved = save(files, kRun, State(10 * (i + 1)), 1, rule, losses[i]);
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_THAT(saved->warnings, IsEmpty());
    removed.insert(removed.end(), saved->removed.begin(), saved->removed.end());
    if (i == 2) {
      ASSERT_TRUE(pin(files, path_of(30)).ok());
    }
  }
  EXPECT_THAT(steps_in(files), ElementsAre(30, 40, 50, 60));
  EXPECT_THAT(removed, ElementsAre(path_of(10), path_of(20)));
  EXPECT_EQ(CheckpointReader::open(files, path_of(50)).value()->manifest().eval_loss, 2.0);
  EXPECT_TRUE(CheckpointReader::open(files, path_of(30)).value()->verify().ok()) << "a pin hurts nothing";
  ASSERT_TRUE(unpin(files, path_of(30)).ok());
  ASSERT_TRUE(unpin(files, path_of(30)).ok());
  ASSERT_TRUE(save(files, kRun, State(70), 1, rule).ok());
  EXPECT_THAT(steps_in(files), ElementsAre(40, 50, 70));
  EXPECT_EQ(pin(files, path_of(30)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unpin(files, path_of(30)).code(), absl::StatusCode::kNotFound);
}

TEST(Retain, TakesNothingWhenTheNewOneIsNotGood) {
  MemoryFiles files;
  for (const uint64_t step : {10, 20, 30}) ASSERT_TRUE(save(files, kRun, State(step)).ok());
  (*files.bytes(path_of(30) + "/shard-00000.safetensors"))[200] ^= 1;
  const Retained retained = retain(files, kRun, path_of(30), 1, {.keep = 1});
  EXPECT_THAT(retained.removed, IsEmpty());
  ASSERT_EQ(retained.warnings.size(), 1u);
  EXPECT_THAT(std::string(retained.warnings[0].message()), HasSubstr("step-00000030/shard-00000"));
  EXPECT_THAT(steps_in(files), ElementsAre(10, 20, 30));
}

TEST(Retain, LeavesWhatIsDamagedAndWhatWasJustPublishedAlone) {
  MemoryFiles files;
  for (const uint64_t step : {10, 20, 30, 40}) ASSERT_TRUE(save(files, kRun, State(step)).ok());
  ASSERT_TRUE(files.remove_file(path_of(20) + "/manifest.json").ok());
  const Retained retained = retain(files, kRun, path_of(10), 1, {.keep = 1});  // Fresh, though not the newest.
  EXPECT_THAT(retained.removed, ElementsAre(path_of(30)));
  EXPECT_THAT(steps_in(files), ElementsAre(10, 20, 40));
}

// Somebody pins a checkpoint in the very moment before it goes to the trash.
class LatePin : public MemoryFiles {
 public:
  absl::Status rename(const std::string& from, const std::string& to) override {
    if (to.find("/.trash-step-") != std::string::npos && !done_) {
      done_ = true;
      EXPECT_TRUE(pin(*this, from).ok());
    }
    return MemoryFiles::rename(from, to);
  }
  bool done_ = false;
};

TEST(Retain, APinAtTheLastMomentCounts) {
  LatePin files;
  for (const uint64_t step : {10, 20, 30}) ASSERT_TRUE(save(files, kRun, State(step)).ok());
  const Retained retained = retain(files, kRun, path_of(30), 1, {.keep = 1});
  EXPECT_THAT(retained.warnings, IsEmpty());
  EXPECT_THAT(retained.removed, ElementsAre(path_of(20)));
  EXPECT_THAT(steps_in(files), ElementsAre(10, 30));
  EXPECT_TRUE(is_pinned(files, path_of(10)).value());
}

// And then the power goes, at any operation: what is pinned is never lost.
TEST(Retain, APinAtTheLastMomentSurvivesAPowerCut) {
  for (int64_t at = 0;; ++at) {
    LatePin files;
    for (const uint64_t step : {10, 20, 30}) ASSERT_TRUE(save(files, kRun, State(step)).ok());
    files.plan(MemoryFiles::Fault::kNone, 0);
    files.done_ = true;
    ASSERT_TRUE(pin(files, path_of(10)).ok());
    const auto trash = move_to_trash(files, path_of(10), 1);  // As retention does before it looks again.
    ASSERT_TRUE(trash.ok());
    files.plan(MemoryFiles::Fault::kPowerCut, at);
    std::vector<absl::Status> trouble;
    const bool whole = sweep(files, kRun, 2, trouble).ok() && trouble.empty() && files.operations() <= at;
    files.restart(nullptr);
    trouble.clear();
    ASSERT_TRUE(sweep(files, kRun, 2, trouble).ok());
    ASSERT_THAT(trouble, IsEmpty());
    ASSERT_THAT(steps_in(files), ElementsAre(10, 20, 30));
    ASSERT_TRUE(CheckpointReader::open(files, path_of(10)).value()->verify().ok());
    ASSERT_TRUE(is_pinned(files, path_of(10)).value());
    if (whole) break;
  }
}

TEST(Retain, APinSurvivesTheReplacementOfADamagedCheckpoint) {
  MemoryFiles files;
  ASSERT_TRUE(save(files, kRun, State(10)).ok());
  ASSERT_TRUE(pin(files, path_of(10)).ok());
  files.bytes(path_of(10) + "/shard-00000.safetensors")->resize(9);
  const auto again = save(files, kRun, State(10), 2);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->already_there);
  EXPECT_TRUE(CheckpointReader::open(files, path_of(10)).value()->verify().ok());
  EXPECT_TRUE(is_pinned(files, path_of(10)).value());
}

TEST(RemoveCheckpoint, LatestNamesOneThatIsThere) {
  MemoryFiles files;
  for (const uint64_t step : {10, 20, 30}) ASSERT_TRUE(save(files, kRun, State(step)).ok());
  const auto latest = [&] { return read_file(files, checkpoints_dir(kRun) + "/LATEST", 100).value(); };
  ASSERT_TRUE(remove_checkpoint(files, path_of(10), false).ok());
  EXPECT_EQ(latest(), "step-00000030\n");
  ASSERT_TRUE(remove_checkpoint(files, path_of(30), false).ok());
  EXPECT_EQ(latest(), "step-00000020\n");
  EXPECT_THAT(files.list(checkpoints_dir(kRun)).value(), UnorderedElementsAre("step-00000020", "LATEST"));
}

TEST(RemoveCheckpoint, RefusesThePinnedAndTheOnlyGoodOne) {
  MemoryFiles files;
  for (const uint64_t step : {10, 20, 30}) ASSERT_TRUE(save(files, kRun, State(step)).ok());
  ASSERT_TRUE(pin(files, path_of(10)).ok());
  absl::Status status = remove_checkpoint(files, path_of(10), false);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step-00000010 is pinned"));
  EXPECT_TRUE(remove_checkpoint(files, path_of(10), true).ok());
  EXPECT_THAT(steps_in(files), ElementsAre(20, 30));
  // Damage that only reading finds makes the other one the only good one.
  (*files.bytes(path_of(20) + "/shard-00000.safetensors"))[200] ^= 1;
  status = remove_checkpoint(files, path_of(30), false);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("only good one"));
  EXPECT_TRUE(remove_checkpoint(files, path_of(20), false).ok()) << "the damaged one may go";
  EXPECT_TRUE(remove_checkpoint(files, path_of(30), true).ok());
  EXPECT_THAT(files.list(checkpoints_dir(kRun)).value(), IsEmpty()) << "LATEST names none that is gone";
  EXPECT_EQ(remove_checkpoint(files, path_of(30), false).code(), absl::StatusCode::kNotFound);
}

TEST(RemoveCheckpoint, AfterAPowerCutItIsThereInWholeOrNotAtAll) {
  for (int64_t at = 0;; ++at) {
    MemoryFiles files;
    for (const uint64_t step : {10, 20}) ASSERT_TRUE(save(files, kRun, State(step)).ok());
    files.plan(MemoryFiles::Fault::kPowerCut, at);
    const bool whole = remove_checkpoint(files, path_of(10), false).ok();
    files.restart(nullptr);
    for (const uint64_t step : steps_in(files)) {
      ASSERT_TRUE(CheckpointReader::open(files, path_of(step)).value()->verify().ok());
    }
    if (steps_in(files).size() == 2) {  // A second try gets by what the first one left.
      ASSERT_FALSE(whole);
      ASSERT_TRUE(remove_checkpoint(files, path_of(10), false).ok());
    }
    ASSERT_THAT(steps_in(files), ElementsAre(20));
    if (whole) break;
  }
}

}  // namespace
}  // namespace telar::checkpoint
