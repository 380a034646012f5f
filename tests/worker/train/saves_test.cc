// Saves beside training: what they write, how they fail, and whom they keep waiting.
#include "worker/train/saves.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/fakes/device.h"
#include "tests/worker/checkpoint/memory_files.h"
#include "tests/worker/train/tiny.h"
#include "worker/backend/cpu/cpu.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/run_files.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

using checkpoint::MemoryFiles;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Report = v1::CheckpointReport;

constexpr const char* kRun = "/runs/one";

// A coordinator that answers as it is told to.
struct FakeCoordinator {
  std::atomic<bool> away{false};
  std::atomic<bool> stale{false};
  std::atomic<int> asked{0};
  std::optional<checkpoint::Decision> decided;  // By the thread that asks.

  checkpoint::PatientCommitter committer{
      {.commit = [this](const checkpoint::Decision& wanted) -> absl::Status {
         ++asked;
         if (away) return absl::UnavailableError("connection refused");
         if (stale) return absl::FailedPreconditionError("epoch 1: the current epoch is 2");
         decided = wanted;
         return absl::OkStatus();
       },
       .last = [this]() -> absl::StatusOr<std::optional<checkpoint::Decision>> { return decided; },
       .on_wait = nullptr},
      milliseconds(100),
      {milliseconds(1), milliseconds(2)}};
};

class SavesTest : public ::testing::Test {
 protected:
  SavesTest() {
    device_.before_copies["snapshot"] = [this](backend::Stream&) {
      std::this_thread::sleep_for(copy_delay_);
      return absl::OkStatus();
    };
    plan_.set_job("projects/default/jobs/test");
    plan_.set_epoch(1);
    plan_.set_world_size(1);
    plan_.set_run_dir(kRun);
    *plan_.mutable_spec() = testing::tiny_spec();
    plan_.mutable_spec()->mutable_checkpoint()->set_every_steps(2);
    plan_.mutable_spec()->mutable_checkpoint()->set_keep(3);
  }

  // Another rank, with weights of its own, over the same files.
  void start() {
    saves_.reset();
    replica_.reset();
    replica_ =
        Replica::create(plan::run_shape(plan_.spec(), parallel::Mesh::of_rank(0, 1, 1, 1)), device_, {}, {}).value();
    ASSERT_TRUE(replica_->init().ok());
    saved_ = std::make_unique<SavedState>(plan_, coordinator_.committer, files_);
    saves_ = std::make_unique<Saves>(plan_, *saved_, *replica_, &coordinator_.committer,
                                     Saves::Patience{milliseconds(20), milliseconds(20)});
    const absl::Status status = saves_->prepare(UINT64_MAX, nullptr);
    ASSERT_TRUE(status.ok()) << status;
  }
  // One step, and the save behind it if it is due; as run.cc does it, with one step in flight.
  void step(uint64_t number, bool due) {
    if (due) waited_ = saves_->make_room();
    ASSERT_TRUE(testing::submit(*replica_, number).ok());
    if (due) {
      ASSERT_TRUE(saves_->stage(number).ok());
      EXPECT_FALSE(saves_->may_stage());
    }
    ASSERT_TRUE(replica_->finish_step().ok());
    if (due) saves_->write({number, 4 * number, {}, {{"web", number}}});
  }
  // All that is told from now on until so many saves are over.
  std::vector<Report> reports(int over) {
    std::vector<Report> all;
    while (over > 0) {
      std::vector<Report> some;
      error_ = saves_->take_reports(some);
      for (const Report& report : some) {
        all.push_back(report);
        over -= report.state() == Report::STAGED ? 0 : 1;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    return all;
  }
  static std::vector<std::string> told(const std::vector<Report>& reports) {
    std::vector<std::string> texts;
    for (const Report& report : reports) {
      texts.push_back(Report::State_Name(report.state()) + " " + std::to_string(report.step()));
    }
    return texts;
  }
  std::vector<std::string> published() {
    std::vector<std::string> names;
    const auto all = checkpoint::list_published(files_, kRun).value();
    for (const auto& one : all) {
      EXPECT_TRUE(checkpoint::CheckpointReader::open(files_, one.path).value()->verify().ok());
      names.push_back(std::to_string(one.step));
    }
    return names;
  }

  std::chrono::microseconds copy_delay_{0};
  fakes::FakeDevice device_{backend::cpu::create_device({}, backend::cpu::create_kernels(), nullptr)};
  MemoryFiles files_;
  FakeCoordinator coordinator_;
  v1::RankPlan plan_;
  double waited_ = 0;
  absl::Status error_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<SavedState> saved_;
  std::unique_ptr<Saves> saves_;
};

// However late the copy, and with the next step under way: byte by byte the files of a save that training waits for.
TEST_F(SavesTest, WritesWhatABlockingSaveWrites) {
  const auto contents = [&] {
    std::map<std::string, std::string> all;
    for (const std::string& path : files_.all_files(kRun)) all[path] = *files_.bytes(path);
    return all;
  };
  const auto train = [&] {
    step(1, false);
    step(2, true);
    step(3, false);
  };
  plan_.mutable_spec()->mutable_checkpoint()->set_async(false);
  start();
  EXPECT_FALSE(saves_->async());
  EXPECT_EQ(saves_->host_bytes(), 0u);
  step(1, false);
  step(2, false);
  ASSERT_TRUE(saves_->save_now({2, 8, {}, {{"web", 2}}}).ok());
  EXPECT_THAT(told(reports(1)), ElementsAre("STAGED 2", "DURABLE 2"));
  const auto blocking = contents();
  for (const auto delay : {std::chrono::microseconds(0), std::chrono::microseconds(500)}) {
    copy_delay_ = delay;
    ASSERT_TRUE(checkpoint::remove_with_files(files_, std::string(kRun) + "/ckpt/step-00000002").ok());
    coordinator_.decided.reset();
    plan_.mutable_spec()->mutable_checkpoint()->set_async(true);
    start();
    EXPECT_TRUE(saves_->async());
    EXPECT_GT(saves_->host_bytes(), 0u);
    train();
    const auto over = reports(1);
    EXPECT_THAT(told(over), ElementsAre("STAGED 2", "DURABLE 2"));
    EXPECT_EQ(over[1].path(), "/runs/one/ckpt/step-00000002");
    EXPECT_GT(over[1].bytes(), 0u);
    EXPECT_TRUE(saves_->finish(2).ok());
    auto asynchronous = contents();
    // The manifest has the spec, which says how it was saved.
    const std::string manifest = std::string(kRun) + "/ckpt/step-00000002/manifest.json";
    EXPECT_THAT(asynchronous[manifest],
                AllOf(HasSubstr("\"async\": true"), HasSubstr("\"consumed_samples\": 8"), HasSubstr("\"web\": 2")));
    asynchronous[manifest] = blocking.at(manifest);
    EXPECT_TRUE(asynchronous == blocking);
  }
}

TEST_F(SavesTest, TrainingGoesOnWhileTheCoordinatorIsAway) {
  start();
  coordinator_.away = true;
  step(1, false);
  step(2, true);
  while (coordinator_.asked < 3) std::this_thread::yield();
  step(3, false);
  std::vector<Report> some;
  ASSERT_TRUE(saves_->take_reports(some).ok());
  EXPECT_THAT(told(some), ElementsAre("STAGED 2"));
  EXPECT_THAT(published(), IsEmpty());
  coordinator_.away = false;
  EXPECT_THAT(told(reports(1)), ElementsAre("DURABLE 2"));
  EXPECT_THAT(published(), ElementsAre("2"));
}

// One that is due takes the place of one that only waits; that is nobody's failure.
TEST_F(SavesTest, WhileTheCoordinatorIsAwaySavesReplaceEachOther) {
  start();
  coordinator_.away = true;
  for (const uint64_t number : {2, 4, 6, 8, 10}) {
    step(number - 1, false);
    step(number, true);
    while (coordinator_.asked == 0) std::this_thread::yield();
    coordinator_.asked = 0;
    EXPECT_EQ(waited_ > 0, number > 2);
  }
  coordinator_.away = false;
  const auto over = reports(5);
  EXPECT_TRUE(error_.ok()) << error_;
  EXPECT_THAT(told(over), ElementsAre("STAGED 2", "FAILED 2", "STAGED 4", "FAILED 4", "STAGED 6", "FAILED 6",
                                      "STAGED 8", "FAILED 8", "STAGED 10", "DURABLE 10"));
  EXPECT_GT(over[1].stall_seconds(), 0);
  EXPECT_THAT(over[1].message(), HasSubstr("asked the coordinator"));
  EXPECT_THAT(published(), ElementsAre("10"));
  EXPECT_THAT(files_.list(std::string(kRun) + "/ckpt").value(), UnorderedElementsAre("step-00000010", "LATEST"));
}

TEST_F(SavesTest, TheEndOfARunDoesNotWaitForEver) {
  start();
  coordinator_.away = true;
  step(1, false);
  step(2, true);
  const absl::Status status = saves_->finish(2);
  EXPECT_EQ(class_of(status), v1::COMMUNICATION) << status;
  EXPECT_THAT(told(reports(1)), ElementsAre("STAGED 2", "FAILED 2"));
  // The files wait for the next life, which may find them decided: the answer may be all that was lost.
  coordinator_.away = false;
  coordinator_.decided = checkpoint::Decision{2, 1};
  plan_.set_epoch(2);
  start();
  EXPECT_EQ(saved_->choose(nullptr).value(), "/runs/one/ckpt/step-00000002");
  const auto position = saved_->restore("/runs/one/ckpt/step-00000002", *replica_);
  ASSERT_TRUE(position.ok()) << position.status();
  EXPECT_EQ(position->consumed_samples, 8u);
}

TEST_F(SavesTest, AStaleEpochPublishesNothing) {
  start();
  step(1, false);
  step(2, true);
  EXPECT_THAT(told(reports(1)), ElementsAre("STAGED 2", "DURABLE 2"));
  coordinator_.stale = true;
  step(3, false);
  step(4, true);
  const auto over = reports(1);
  EXPECT_THAT(told(over), ElementsAre("STAGED 4", "FAILED 4"));
  EXPECT_THAT(over[1].message(), HasSubstr("the current epoch is 2"));
  // Nor will it ever: it ends at once, and before another step if that save was waited for.
  EXPECT_EQ(class_of(error_), v1::STORAGE) << error_;
  EXPECT_EQ(class_of(saves_->check_end()), v1::STORAGE);
  EXPECT_EQ(class_of(saves_->finish(4)), v1::STORAGE);
  EXPECT_THAT(published(), ElementsAre("2"));
}

TEST_F(SavesTest, AnAttemptThatFindsAGreaterOneEnds) {
  start();
  step(1, false);
  ASSERT_TRUE(checkpoint::make_directories(files_, std::string(kRun) + "/ckpt/.tmp-step-00000002-7").ok());
  step(2, true);
  EXPECT_THAT(told(reports(1)), ElementsAre("FAILED 2"));
  EXPECT_EQ(class_of(error_), v1::STORAGE) << error_;
  EXPECT_THAT(std::string(error_.message()), HasSubstr("of attempt 7"));
}

TEST_F(SavesTest, TheThirdFailureInARowEndsTheRun) {
  start();
  files_.plan(MemoryFiles::Fault::kDiskFull, 0);
  for (const uint64_t number : {2, 4}) {
    step(number, true);
    reports(1);
    EXPECT_TRUE(error_.ok()) << error_;
  }
  files_.plan(MemoryFiles::Fault::kNone, 0);
  step(6, true);
  reports(1);
  files_.plan(MemoryFiles::Fault::kDiskFull, 0);
  for (const uint64_t number : {8, 10}) {
    step(number, true);
    const auto over = reports(1);
    EXPECT_THAT(told(over), ElementsAre("FAILED " + std::to_string(number)));
    EXPECT_THAT(over[0].message(), HasSubstr("No space"));
    EXPECT_TRUE(error_.ok()) << error_;
  }
  step(12, true);
  reports(1);
  EXPECT_EQ(class_of(error_), v1::STORAGE);
  EXPECT_THAT(std::string(error_.message()), HasSubstr("3 saves in a row failed"));
  files_.plan(MemoryFiles::Fault::kNone, 0);
  EXPECT_THAT(published(), ElementsAre("6"));
}

// A failure that is not of the last save is no failure of the end.
TEST_F(SavesTest, AnEarlierFailureDoesNotFailTheEnd) {
  start();
  files_.plan(MemoryFiles::Fault::kDiskFull, 0);
  step(2, true);
  EXPECT_FALSE(saves_->finish(2).ok());
  files_.plan(MemoryFiles::Fault::kNone, 0);
  step(3, false);
  EXPECT_TRUE(saves_->finish(3).ok());
}

TEST_F(SavesTest, TheNextSaveWaitsForASlowOne) {
  start();
  copy_delay_ = milliseconds(2);
  step(2, true);
  EXPECT_EQ(waited_, 0);
  step(4, true);
  EXPECT_GT(waited_, 0);
  const auto over = reports(2);
  EXPECT_THAT(told(over), ElementsAre("STAGED 2", "DURABLE 2", "STAGED 4", "DURABLE 4"));
  EXPECT_GE(over[1].stall_seconds(), waited_);
  EXPECT_THAT(published(), ElementsAre("4", "2"));
}

// Destroyed while it is copied, and while it waits for an answer: at once, and nothing half done is left in sight.
TEST_F(SavesTest, EndsWithASaveUnderWay) {
  start();
  copy_delay_ = milliseconds(20);  // Long enough for this thread to get its turn.
  step(2, true);
  saves_.reset();
  EXPECT_THAT(published(), IsEmpty());
  start();
  copy_delay_ = milliseconds(0);
  coordinator_.away = true;
  coordinator_.asked = 0;
  coordinator_.committer.set_patience(std::nullopt);
  step(2, true);
  while (coordinator_.asked < 2) std::this_thread::yield();
  saves_.reset();
  EXPECT_THAT(published(), IsEmpty());
  start();
  step(2, true);
  saves_->finish_or_give_up(milliseconds(5));
  EXPECT_THAT(published(), IsEmpty());
}

TEST_F(SavesTest, ARunThatDoesNotSaveTakesNoMemory) {
  plan_.mutable_spec()->mutable_checkpoint()->set_every_steps(0);
  plan_.mutable_spec()->mutable_checkpoint()->set_at_end(false);
  start();
  EXPECT_FALSE(saves_->async());
  plan_.mutable_spec()->mutable_checkpoint()->set_at_end(true);
  start();
  EXPECT_TRUE(saves_->async());
  Saves other(plan_, *saved_, *replica_, nullptr, {});
  const absl::Status status = other.prepare(1000, nullptr);
  EXPECT_EQ(class_of(status), v1::OUT_OF_MEMORY) << status;
}

}  // namespace
}  // namespace telar::train
