// SIGTERM to real ranks at every stage of a run: it is saved at the next boundary, and goes on from there as if it had
// never been stopped.
#include <random>

#include "tests/worker/train/gang.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/metrics/exit_codes.h"

namespace telar::train::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kSaved = metrics::kExitInterrupted;

class StopTest : public GangTest {
 protected:
  std::optional<double> eval_loss_in(const std::string& run, uint64_t step) {
    const auto reader = checkpoint::CheckpointReader::open(checkpoint::FileSystem::posix(), checkpoint(run, step));
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? (*reader)->manifest().eval_loss : std::nullopt;
  }
  bool is_saved(const std::string& run, uint64_t step) const { return fs::exists(checkpoint(run, step)); }
};

// More batches than any machine gets through before the signal comes.
constexpr uint32_t kEndless = 1'000'000;

TEST_F(StopTest, InAnEvaluationAllRanksLeaveBehindTheSameBatch) {
  v1::JobSpec made = spec(6);
  made.mutable_eval()->set_every_steps(3);
  made.mutable_eval()->set_sequences(kEndless);
  Gang gang = start("a", made);
  ASSERT_TRUE(await_events(gang, 1, "step", 3));
  gang[1]->signal(SIGTERM);  // One rank is enough.
  EXPECT_THAT(wait_all(gang), Each(kSaved));
  EXPECT_THAT(events(0, "eval"), IsEmpty());
  EXPECT_EQ(losses("a").size(), 3u);
  ASSERT_TRUE(is_saved("a", 3));
  EXPECT_FALSE(eval_loss_in("a", 3).has_value());
  // The evaluation that was given up comes first.
  made.mutable_eval()->set_sequences(8);
  gang = start("a", made);
  EXPECT_THAT(wait_all(gang), Each(0));
  const auto evals = events(0, "eval");
  ASSERT_EQ(evals.size(), 2u);
  EXPECT_EQ(evals[0]["step"], "3");
  EXPECT_EQ(evals[1]["step"], "6");
  EXPECT_TRUE(eval_loss_in("a", 6).has_value());
}

TEST_F(StopTest, InTheLastEvaluationTheRunIsNotOver) {
  v1::JobSpec made = spec(2);
  made.mutable_eval()->set_sequences(kEndless);
  made.mutable_checkpoint()->set_at_end(false);
  Gang gang = start("a", made);
  ASSERT_TRUE(await_events(gang, 0, "step", 2));
  gang[0]->signal(SIGTERM);
  EXPECT_THAT(wait_all(gang), Each(kSaved));
  EXPECT_TRUE(is_saved("a", 2));
  made.mutable_eval()->set_sequences(8);
  gang = start("a", made);
  EXPECT_THAT(wait_all(gang), Each(0));
  EXPECT_EQ(events(0, "eval").size(), 1u);
  EXPECT_EQ(losses("a").size(), 2u);
}

TEST_F(StopTest, InASampleTheRunIsSavedAndSamplesAgain) {
  v1::JobSpec made = spec(2);
  made.mutable_sample()->set_tokens(kEndless);
  made.mutable_checkpoint()->set_at_end(false);
  Gang gang = start("a", made);
  ASSERT_TRUE(await_events(gang, 0, "eval", 1));
  gang[1]->signal(SIGTERM);
  EXPECT_THAT(wait_all(gang), Each(kSaved));
  EXPECT_FALSE(fs::exists(root_ / "a" / "sample.txt"));
  EXPECT_TRUE(eval_loss_in("a", 2).has_value());
  made.mutable_sample()->set_tokens(3);
  gang = start("a", made);
  EXPECT_THAT(wait_all(gang), Each(0));
  EXPECT_TRUE(fs::exists(root_ / "a" / "sample.txt"));
  EXPECT_THAT(events(0, "eval"), IsEmpty());
}

TEST_F(StopTest, WhileItWaitsForItsPeersThereIsNothingToSave) {
  v1::JobSpec made = spec(4);
  Gang gang = start("a", made);
  gang[1]->end(SIGKILL);  // Rank 0 waits for it now, or will.
  while (read_text(root_ / "log.txt").empty() && !fs::exists(events_path(0))) std::this_thread::yield();
  gang[0]->signal(SIGTERM);
  EXPECT_EQ(gang[0]->wait(), kSaved);
  const auto finished = events(0, "finished");
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].value("interrupted", false), true);
  EXPECT_FALSE(is_saved("a", 1));
}

// Wherever the signals come: no step is lost or done twice, and the losses are those of the unbroken run.
TEST_F(StopTest, AtRandomMoments) {
  v1::JobSpec made = spec(30);
  made.mutable_eval()->set_every_steps(5);
  made.mutable_checkpoint()->set_every_steps(7);
  Gang unbroken = start("unbroken", made);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_THAT(wait_all(unbroken), Each(0));
  const auto whole = std::chrono::steady_clock::now() - begin;
  const auto want = losses("unbroken");
  ASSERT_EQ(want.size(), 30u);
  std::mt19937 random(11);
  for (int round = 0; round < (all_crashes() ? 40 : 3); ++round) {
    fs::remove_all(root_ / "a");
    bool over = false;
    for (int life = 0; !over; ++life) {
      Gang gang = start("a", made);
      if (life < 4) std::this_thread::sleep_for(whole * (random() % 1000) / 1000);
      if (life < 4) gang[random() % 2]->signal(SIGTERM);
      await_any(gang);
      for (auto& rank : gang) rank->signal(SIGTERM);  // As the service does; else it might wait for its peer for long.
      const auto codes = wait_all(gang);
      // A rank that leaves before its first step, or its first instruction, has nothing to save; the other one then
      // lacks a peer.
      const int lonely = metrics::exit_code(v1::COMMUNICATION), unborn = 128 + SIGTERM;
      EXPECT_THAT(codes, Each(AnyOf(0, kSaved, lonely, unborn)));
      if (codes[0] == lonely || codes[1] == lonely) {
        EXPECT_THAT(codes, ::testing::Contains(AnyOf(kSaved, unborn)));
      }
      over = codes == std::vector<int>{0, 0};
      ASSERT_LT(life, 6) << "does not come to its end";
    }
    ASSERT_EQ(losses("a"), want);
  }
}

}  // namespace
}  // namespace telar::train::testing
