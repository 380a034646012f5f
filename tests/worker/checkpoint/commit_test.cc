// The decision between a durable checkpoint and its name: asked for patiently, given up in time, and carried out by the
// next life where the last one could not.
#include "worker/checkpoint/commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/fakes/struck_files.h"
#include "tests/worker/checkpoint/memory_files.h"
#include "tests/worker/checkpoint/state.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr PatientCommitter::Pauses kQuick{milliseconds(1), milliseconds(2)};

// What a coordinator's store would hold.
struct Service {
  std::atomic<int> asked{0};
  std::atomic<int> away{0};  // So many calls are not answered.
  absl::Status answer;
  bool decides_unheard = false;  // The decision is stored though the answer does not arrive.
  std::optional<Decision> decided;

  PatientCommitter committer(milliseconds patience_for_last = milliseconds(50)) {
    PatientCommitter::Service service;
    service.commit = [this](const Decision& wanted) {
      ++asked;
      if (decides_unheard) decided = wanted;
      if (away > 0 && away-- > 0) return absl::UnavailableError("connection refused");
      if (answer.ok()) decided = wanted;
      return answer;
    };
    service.last = [this]() -> absl::StatusOr<std::optional<Decision>> {
      ++asked;
      if (away > 0 && away-- > 0) return absl::UnavailableError("connection refused");
      return decided;
    };
    return PatientCommitter(std::move(service), patience_for_last, kQuick);
  }
};

TEST(PatientCommitter, AsksUntilItIsAnswered) {
  Service service{.away = 5};
  PatientCommitter committer = service.committer();
  EXPECT_TRUE(committer.commit({.step = 7, .attempt = 2}).ok());
  EXPECT_EQ(service.asked, 6);
  EXPECT_EQ(service.decided, (Decision{7, 2}));
  EXPECT_EQ(committer.last().value(), (Decision{7, 2}));
}

TEST(PatientCommitter, TakesNoForAnAnswer) {
  for (const absl::Status& no : {absl::FailedPreconditionError("stale"), absl::NotFoundError("no such job"),
                                 absl::InvalidArgumentError("bad"), absl::UnimplementedError("old")}) {
    Service service{.answer = no};
    PatientCommitter committer = service.committer();
    EXPECT_EQ(committer.commit({7, 2}), no);
    EXPECT_EQ(service.asked, 1);
    EXPECT_TRUE(refused(no));
  }
  // Its disk is full, or it has a bug: who knows whether the decision was stored.
  Service service{.answer = absl::ResourceExhaustedError("disk full")};
  PatientCommitter committer = service.committer();
  committer.set_patience(milliseconds(20));
  const absl::Status status = committer.commit({7, 2});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_FALSE(refused(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("disk full"));
  EXPECT_GT(service.asked, 2);
}

TEST(PatientCommitter, AWaitUnderWayCanBeCutShort) {
  Service service{.away = 1'000'000};
  PatientCommitter committer = service.committer();
  absl::Status status;
  std::thread waiter([&] { status = committer.commit({7, 2}); });
  while (service.asked < 3) std::this_thread::yield();
  committer.set_patience(milliseconds(0));
  waiter.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  // Without end again.
  committer.set_patience(std::nullopt);
  service.away = 4;
  EXPECT_TRUE(committer.commit({8, 2}).ok());
}

TEST(PatientCommitter, AsksForTheLastDecisionForAWhileOnly) {
  Service service{.away = 1'000'000};
  PatientCommitter committer = service.committer(milliseconds(10));
  EXPECT_TRUE(absl::IsUnavailable(committer.last().status()));
}

class CommitTest : public testing::Test {
 protected:
  static constexpr uint64_t kAttempt = 3;

  absl::StatusOr<PublishResult> save_with(const State& state, Committer& committer, int threads = 1,
                                          uint64_t shard_bytes = 128) {
    auto writer = CheckpointWriter::create(*files_, kRun, state.step, kAttempt, shard_bytes, {},
                                           {.threads = threads, .committer = &committer});
    if (!writer.ok()) return writer.status();
    for (const auto& tensor : state.tensors) {
      auto status = (*writer)->add({tensor.name, tensor.kind, tensor.dtype, tensor.shape, tensor.data, {}, {}});
      if (!status.ok()) return status;
    }
    return (*writer)->publish({.job = "projects/p/jobs/j", .consumed_sources = {{"web", 12}, {"books", 3}}}, {});
  }
  std::vector<std::string> names() { return files_->list(checkpoints_dir(kRun)).value(); }
  absl::StatusOr<std::optional<std::string>> forward(Committer& committer, uint64_t attempt = kAttempt + 1) {
    notes_.clear();
    return roll_forward(*files_, kRun, attempt, committer, notes_);
  }

  std::optional<MemoryFiles> files_{std::in_place};
  std::vector<absl::Status> notes_;
};

TEST_F(CommitTest, IsAskedWhenAllIsDurableAndBeforeTheName) {
  ASSERT_TRUE(save(*files_, kRun, State(10), kAttempt).ok());
  Service service;
  PatientCommitter::Service asked;
  asked.commit = [&](const Decision& wanted) {
    EXPECT_EQ(wanted, (Decision{20, kAttempt}));
    EXPECT_THAT(names(), UnorderedElementsAre(".tmp-step-00000020-3", "step-00000010", "LATEST"));
    EXPECT_TRUE(
        CheckpointReader::open(*files_, std::string(kRun) + "/ckpt/.tmp-step-00000020-3").value()->verify().ok());
    return absl::OkStatus();
  };
  PatientCommitter committer(asked, milliseconds(0), kQuick);
  const auto saved = save_with(State(20), committer);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000010", "step-00000020", "LATEST"));
  const auto reader = CheckpointReader::open(*files_, saved->path).value();
  EXPECT_THAT(reader->manifest().consumed_sources, ElementsAre(testing::Pair("books", 3), testing::Pair("web", 12)));
}

TEST_F(CommitTest, ARefusedOneIsTakenAway) {
  ASSERT_TRUE(save(*files_, kRun, State(10), kAttempt).ok());
  Service service{.answer = absl::FailedPreconditionError("job 'j' epoch 3: the current epoch is 4")};
  PatientCommitter committer = service.committer();
  const auto saved = save_with(State(20), committer);
  EXPECT_TRUE(absl::IsFailedPrecondition(saved.status())) << saved.status();
  EXPECT_THAT(std::string(saved.status().message()),
              AllOf(HasSubstr("step-00000020"), HasSubstr("the current epoch is 4")));
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000010", "LATEST"));
}

// The answer was lost: the next life asks, and finds it.
TEST_F(CommitTest, OneThatMayHaveBeenDecidedIsLeftForTheNextLife) {
  for (const bool decided : {true, false}) {
    files_.emplace();
    ASSERT_TRUE(save(*files_, kRun, State(10), kAttempt).ok());
    Service service{.away = 1'000'000, .decides_unheard = decided};
    PatientCommitter committer = service.committer();
    committer.set_patience(milliseconds(5));
    EXPECT_TRUE(absl::IsUnavailable(save_with(State(20), committer).status()));
    EXPECT_THAT(names(), testing::Contains(".tmp-step-00000020-3"));
    service.away = 0;
    files_->restart(nullptr);
    const auto published = forward(committer);
    ASSERT_TRUE(published.ok()) << published.status();
    EXPECT_EQ(published->has_value(), decided);
    std::vector<absl::Status> trouble;
    ASSERT_TRUE(sweep(*files_, kRun, kAttempt + 1, trouble).ok());
    const auto found = find_latest(*files_, kRun, Depth::kContents).value();
    EXPECT_EQ(found.checkpoint->manifest().step, decided ? 20u : 10u);
    EXPECT_THAT(found.skipped, IsEmpty());
    EXPECT_EQ(read_file(*files_, std::string(kRun) + "/ckpt/LATEST", 100).value(),
              decided ? "step-00000020\n" : "step-00000010\n");
    EXPECT_THAT(notes_, IsEmpty());
  }
}

// The attempt that saved it is alive after all, wakes up at that very moment, and renames it itself.
TEST_F(CommitTest, RollingForwardMeetsTheOneWhoSavedIt) {
  ASSERT_TRUE(save(*files_, kRun, State(10), kAttempt).ok());
  Service service{.away = 1'000'000, .decides_unheard = true};
  PatientCommitter committer = service.committer();
  committer.set_patience(milliseconds(5));
  EXPECT_TRUE(absl::IsUnavailable(save_with(State(20), committer).status()));
  service.away = 0;
  const std::string parent = checkpoints_dir(kRun);
  fakes::StruckFiles struck(*files_, [&](int64_t number, const std::string&) {
    return number == 0 ? files_->rename(parent + "/.tmp-step-00000020-3", parent + "/step-00000020") : absl::OkStatus();
  });
  const auto published = roll_forward(struck, kRun, kAttempt + 1, committer, notes_);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_FALSE(published->has_value());
  EXPECT_EQ(find_latest(*files_, kRun, Depth::kContents).value().checkpoint->manifest().step, 20u);
}

// A damaged checkpoint of that step made room already, for a newer attempt that published this one's save.
TEST_F(CommitTest, ALateOneTakesNoGoodCheckpointAway) {
  ASSERT_TRUE(save(*files_, kRun, State(20), kAttempt - 1).ok());
  const std::string target = checkpoints_dir(kRun) + "/step-00000020";
  files_->bytes(target + "/shard-00000.safetensors")->back() ^= 1;
  Service service;
  PatientCommitter::Service slow;
  slow.commit = [&](const Decision& wanted) {  // The answer comes late.
    service.decided = wanted;
    PatientCommitter other = service.committer();
    EXPECT_TRUE(forward(other).value().has_value());
    return absl::OkStatus();
  };
  PatientCommitter committer(slow, milliseconds(0), kQuick);
  EXPECT_TRUE(absl::IsNotFound(save_with(State(20), committer).status()));
  EXPECT_TRUE(CheckpointReader::open(*files_, target).value()->verify().ok());
}

// A power cut at every operation of the save: what the service decided is there after the next start, whatever was
// renamed by then.
TEST_F(CommitTest, WhatIsDecidedSurvivesACrashAtEveryOperation) {
  std::mt19937_64 random(1);
  int forwarded = 0;
  for (int64_t at = 0;; ++at) {
    files_.emplace();
    ASSERT_TRUE(save(*files_, kRun, State(10), kAttempt - 1).ok());
    Service service{.decided = Decision{10, kAttempt - 1}};
    PatientCommitter committer = service.committer();
    files_->plan(MemoryFiles::Fault::kPowerCut, at);
    const auto saved = save_with(State(20), committer);
    const bool over = files_->operations() <= at;
    files_->plan(MemoryFiles::Fault::kNone, {});
    files_->restart(&random);
    const auto published = forward(committer);
    ASSERT_TRUE(published.ok()) << published.status();
    forwarded += published->has_value() ? 1 : 0;
    const auto found = find_latest(*files_, kRun, Depth::kContents).value();
    EXPECT_THAT(found.skipped, IsEmpty());
    EXPECT_EQ(found.checkpoint->manifest().step, service.decided->step) << "cut at operation " << at;
    EXPECT_TRUE(!saved.ok() || found.checkpoint->manifest().step == 20);
    if (over) break;
  }
  EXPECT_GT(forwarded, 0);
}

TEST_F(CommitTest, NobodyIsAskedWhereNothingWasLeft) {
  Service service;
  PatientCommitter committer = service.committer();
  EXPECT_FALSE(forward(committer)->has_value());  // No run folder.
  ASSERT_TRUE(save(*files_, kRun, State(10), kAttempt).ok());
  EXPECT_FALSE(forward(committer)->has_value());
  // A save that died before its manifest was written was never decided.
  ASSERT_TRUE(files_->make_directory(std::string(kRun) + "/ckpt/.tmp-step-00000020-3").ok());
  EXPECT_FALSE(forward(committer)->has_value());
  EXPECT_EQ(service.asked, {});
  LocalCommitter local;
  EXPECT_FALSE(forward(local)->has_value());
}

TEST_F(CommitTest, ADamagedOneIsToldAndNotPublished) {
  ASSERT_TRUE(save(*files_, kRun, State(10), kAttempt).ok());
  Service service{.away = 1'000'000, .decides_unheard = true};
  PatientCommitter committer = service.committer();
  committer.set_patience(milliseconds(1));
  EXPECT_FALSE(save_with(State(20), committer).ok());
  service.away = 0;
  const std::string temp = std::string(kRun) + "/ckpt/.tmp-step-00000020-3";
  files_->bytes(temp + "/shard-00000.safetensors")->back() ^= 1;
  EXPECT_FALSE(forward(committer)->has_value());
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_THAT(std::string(notes_[0].message()), AllOf(HasSubstr(temp), HasSubstr("an older checkpoint has to do")));
  // And one that a younger attempt is at work on is none of this one's business.
  EXPECT_FALSE(forward(committer, kAttempt - 1)->has_value());
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(CommitTest, SeveralThreadsWriteWhatOneWrites) {
  for (const int threads : {2, 4, 9}) {
    files_.emplace();
    LocalCommitter local;
    const State state(30, /*rows=*/1000);
    ASSERT_TRUE(save_with(state, local, threads, /*shard_bytes=*/5000).ok());
    const auto reader = CheckpointReader::open(*files_, std::string(kRun) + "/ckpt/step-00000030").value();
    EXPECT_TRUE(reader->verify().ok());
    EXPECT_GT(reader->manifest().files.size(), 2u);
    for (const auto& tensor : state.tensors) {
      std::vector<std::byte> data(tensor.data.size());
      ASSERT_TRUE(reader->read(tensor.name, tensor.kind, data).ok());
      EXPECT_TRUE(data == tensor.data) << tensor.name;
    }
    // One that fails ends the save of all.
    files_->plan(MemoryFiles::Fault::kDiskFull, 12);
    const auto full = save_with(State(40, 1000), local, threads, 5000);
    EXPECT_TRUE(absl::IsResourceExhausted(full.status())) << full.status();
    files_->plan(MemoryFiles::Fault::kNone, {});
    EXPECT_THAT(names(), UnorderedElementsAre("step-00000030", "LATEST"));
  }
}

TEST_F(CommitTest, OneThatIsGivenUpEndsBetweenTwoPieces) {
  std::atomic<bool> give_up{false};
  auto writer = CheckpointWriter::create(*files_, kRun, 20, kAttempt, 128, {}, {.give_up = &give_up}).value();
  TensorPart part{.name = "wte", .kind = TensorKind::kMaster, .shape = {4 << 20}};
  int reads = 0;
  part.read = [&](uint64_t, std::span<std::byte>) {
    give_up = ++reads == 2;
    return absl::OkStatus();
  };
  ASSERT_TRUE(writer->add(part).ok());
  EXPECT_TRUE(absl::IsCancelled(writer->publish({}, {}).status()));
  EXPECT_EQ(reads, 2);
  writer.reset();
  EXPECT_THAT(names(), IsEmpty());
}

}  // namespace
}  // namespace telar::checkpoint
