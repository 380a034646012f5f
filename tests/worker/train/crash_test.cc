// What real ranks leave behind when they are killed, or the disk fails them, at each operation of a save; and what they
// make of damaged files. After each, the run goes on from a complete checkpoint and ends as the unbroken one does.
#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "tests/worker/train/gang.h"
#include "worker/checkpoint/compare.h"
#include "worker/checkpoint/run_files.h"

namespace telar::train::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kSteps = 6, kEvery = 2;
constexpr const char* kProgram = "train_crash_rank";

class CrashTest : public GangTest {
 protected:
  v1::JobSpec crash_spec(uint32_t keep) {
    v1::JobSpec made = spec(kSteps);
    made.mutable_checkpoint()->set_every_steps(kEvery);
    made.mutable_checkpoint()->set_keep(keep);
    made.mutable_eval()->set_every_steps(4);
    return made;
  }

  // The unbroken run, which keeps all of its checkpoints.
  void record() {
    Gang gang = start("unbroken", crash_spec(100), kProgram);
    ASSERT_THAT(wait_all(gang), Each(0));
    want_ = losses("unbroken");
    ASSERT_EQ(want_.size(), kSteps);
  }

  // Ends the others as the service does where one of them has died.
  static void run_out(Gang& gang) {
    await_any(gang);
    const auto failed = [](const auto& rank) { return rank->poll().value_or(0) != 0; };
    if (std::any_of(gang.begin(), gang.end(), failed)) {
      for (auto& rank : gang) rank->signal(SIGKILL);
    }
    for (auto& rank : gang) rank->wait();
  }

  // Every checkpoint that can be seen is whole, and bit for bit the one of that step. The newest step, 0 for none.
  uint64_t check_published(const std::string& run) {
    auto& files = checkpoint::FileSystem::posix();
    uint64_t newest = 0;
    const std::vector<checkpoint::Published> published =
        checkpoint::list_published(files, (root_ / run).string()).value();
    for (const auto& one : published) {
      const auto reader = checkpoint::CheckpointReader::open(files, one.path);
      EXPECT_TRUE(reader.ok()) << reader.status();
      if (!reader.ok()) continue;
      EXPECT_TRUE((*reader)->verify().ok());
      newest = std::max(newest, one.step);
      expect_recorded(**reader, one.step);
    }
    return newest;
  }
  void expect_recorded(const checkpoint::CheckpointReader& reader, uint64_t step) {
    const auto recorded =
        checkpoint::CheckpointReader::open(checkpoint::FileSystem::posix(), checkpoint("unbroken", step));
    ASSERT_TRUE(recorded.ok()) << recorded.status();
    const auto compared = checkpoint::compare_checkpoints(reader, **recorded);
    ASSERT_TRUE(compared.ok()) << compared.status();
    for (const auto& tensor : compared->tensors) {
      EXPECT_EQ(tensor.difference, checkpoint::Difference::kNone) << "step " << step << ": " << tensor.name;
    }
    EXPECT_THAT(compared->position, IsEmpty());
  }

  // Starts again, and expects to go on from `step`.
  void resume_and_check(const std::string& run, uint64_t step) {
    Gang gang = start(run, crash_spec(1), kProgram);
    ASSERT_THAT(wait_all(gang), Each(0));
    const auto started = events(0, "started");
    ASSERT_EQ(started.size(), 1u);
    EXPECT_EQ(started[0].value("start_step", "0"), std::to_string(step));
    EXPECT_EQ(started[0].value("resumed_from", ""), step == 0 ? "" : checkpoint(run, step));
    EXPECT_EQ(losses(run), want_);
    EXPECT_EQ(check_published(run), kSteps);
    auto names = checkpoint::FileSystem::posix().list((root_ / run / "ckpt").string()).value();
    EXPECT_THAT(names, Each(Not(StartsWith(".")))) << "swept";
  }

  // One operation of one rank goes wrong.
  void crash(const std::string& kind, uint32_t rank, int64_t at) {
    SCOPED_TRACE(absl::StrCat(kind, " at operation ", at, " of rank ", rank));
    fs::remove_all(root_ / "crash");
    Gang gang = start("crash", crash_spec(1), kProgram, {{rank, {"--fault", absl::StrCat(kind, ":", at)}}});
    run_out(gang);
    if (kind == "kill") {
      ASSERT_EQ(gang[rank]->wait(), 128 + SIGKILL);
    }
    // What was decided counts, whoever gives it its name.
    const uint64_t published = check_published("crash"), decided = decided_only("crash");
    EXPECT_TRUE(decided == 0 || decided > published) << decided;
    const uint64_t step = std::max(published, decided);
    ASSERT_THAT(step, AnyOf(0u, 2u, 4u, 6u));
    forwarded_ += decided > 0 ? 1 : 0;
    for (const auto& error : events(rank, "error"))
      EXPECT_THAT(error.get<std::string>(), HasSubstr((root_ / "crash").string()));
    seen_.insert(step);
    resume_and_check("crash", step);
  }

  // Operations of each rank in a run that nothing goes wrong in.
  std::vector<int64_t> count_operations() {
    Gang gang = start("counted", crash_spec(1), kProgram);
    EXPECT_THAT(wait_all(gang), Each(0));
    std::vector<int64_t> counts;
    for (const uint32_t rank : {0u, 1u}) counts.push_back(events(rank, "operations").at(0).get<int64_t>());
    return counts;
  }

  // `few` cases spread over a rank's operations, or all.
  void crash_at(const std::string& kind, uint32_t rank, int64_t operations, int64_t few) {
    ASSERT_GT(operations, 20);
    const int64_t cases = all_crashes() ? operations : few;
    for (int64_t i = 0; i < cases && !HasFailure(); ++i) crash(kind, rank, (2 * i + 1) * operations / (2 * cases));
  }

  std::vector<std::string> want_;
  std::set<uint64_t> seen_;
  int forwarded_ = 0;  // Crashes between a decision and its rename.
};

TEST_F(CrashTest, KilledAtAnyOperationOfAnyRank) {
  ASSERT_NO_FATAL_FAILURE(record());
  const std::vector<int64_t> operations = count_operations();
  for (const uint32_t rank : {0u, 1u}) crash_at("kill", rank, operations[rank], rank == 0 ? 6 : 3);
  if (all_crashes()) {
    EXPECT_EQ(seen_, (std::set<uint64_t>{0, 2, 4, 6}));
    EXPECT_GT(forwarded_, 0);
  }
}

TEST_F(CrashTest, ADiskThatIsFullOrFails) {
  ASSERT_NO_FATAL_FAILURE(record());
  const std::vector<int64_t> operations = count_operations();
  for (const char* kind : {"full", "error"}) {
    for (const uint32_t rank : {0u, 1u}) crash_at(kind, rank, operations[rank], 1);
  }
}

TEST_F(CrashTest, ADamagedCheckpointIsPassedOverAndSaidSo) {
  ASSERT_NO_FATAL_FAILURE(record());
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoint("unbroken", kSteps))) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  ASSERT_EQ(names.size(), 3u);
  for (size_t i = 0; i < names.size(); ++i) {
    for (const bool cut : {false, true}) {
      if (!all_crashes() && cut != (i % 2 == 0)) continue;
      SCOPED_TRACE(absl::StrCat(names[i], cut ? " cut" : " flipped"));
      fs::remove_all(root_ / "crash");
      fs::copy(root_ / "unbroken", root_ / "crash", fs::copy_options::recursive);
      const fs::path victim = fs::path(checkpoint("crash", kSteps)) / names[i];
      std::string bytes = read_text(victim);
      if (cut) {
        bytes.resize(bytes.size() / 2);
      } else {
        bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 16);
      }
      std::ofstream(victim, std::ios::binary) << bytes;
      ASSERT_NO_FATAL_FAILURE(resume_and_check("crash", kSteps - kEvery));
      const auto passed_over = events(0, "started")[0].at("passed_over");
      ASSERT_EQ(passed_over.size(), 1u);
      EXPECT_THAT(passed_over[0].get<std::string>(), StartsWith(checkpoint("crash", kSteps) + ": "));
      EXPECT_THAT(passed_over[0].get<std::string>(), HasSubstr(names[i]));
      EXPECT_THAT(events(1, "started")[0].value("passed_over", nlohmann::json::array()), IsEmpty());
      EXPECT_THAT(read_text(root_ / "log.txt"),
                  HasSubstr("checkpoint " + checkpoint("crash", kSteps) + " is not usable"));
    }
  }
}

}  // namespace
}  // namespace telar::train::testing
