// FP8 runs that go on from a checkpoint: as if they had never been broken in the same layout, and with the state that
// the other one had in any other. The checkpoints are files; the ranks are threads, and last processes.
#include <filesystem>

#include "tests/worker/train/gang.h"
#include "tests/worker/train/layouts.h"
#include "worker/checkpoint/compare.h"
#include "worker/checkpoint/run_files.h"
#include "worker/train/saved_state.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointReader;
using checkpoint::Difference;
using checkpoint::FileSystem;
using checkpoint::TensorKind;
using testing::Layout;
using Recipe = v1::PrecisionSpec::Recipe;

constexpr int kEach = 2;  // Steps that a layout trains before a save, and behind it.
constexpr int64_t kHistory = 3;

// Each goes on from what the one before it saved.
std::vector<Layout> chain() {
  const char* const model = "llama_even";
  std::vector<Layout> all = {{model},
                             {model, 2},
                             {model, 1, 1, 2, 3},
                             {model, 1, 2},
                             {model, 2, 2, 2, 1, 0, "zb-v", 2},
                             {model, 1, 1, 4, 2, 2},
                             {model, 2, 1, 2, 3}};
  for (Layout& layout : all) layout.precision = v1::FP8;
  return all;
}

struct Trained {
  std::vector<double> losses;
  std::string path;  // Of the checkpoint behind the last step.
};

class Fp8ResumeTest : public ::testing::TestWithParam<Recipe> {
 protected:
  Fp8ResumeTest() {
    char name[] = "/tmp/telar_fp8_resume_test_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Fp8ResumeTest() override { fs::remove_all(root_); }

  // Behind resolving, which asks for whole blocks: this model's are short.
  static v1::JobSpec spec_of(const Layout& layout) {
    v1::JobSpec spec = testing::spec_of(layout);
    v1::PrecisionSpec& precision = *spec.mutable_precision();
    precision.set_recipe(GetParam());
    if (GetParam() == v1::PrecisionSpec::DELAYED) {
      precision.set_fp8_history(kHistory);
      precision.set_fp8_amax(v1::PrecisionSpec::MAX);
    }
    spec.mutable_checkpoint()->set_keep(100);
    return spec;
  }

  // All ranks of a gang go on from `from` (empty: they begin), save what they have if `moves`, train `steps` steps and
  // save again; into `run`.
  Trained train(const Layout& layout, const std::string& from, int steps, const std::string& run, bool moves = false) {
    const v1::JobSpec spec = spec_of(layout);
    fakes::ThreadCommunicators communicators;
    Trained trained;
    testing::on_all_ranks(spec, testing::options_of(communicators), [&](int rank, Replica& replica) {
      v1::RankPlan plan;
      plan.set_job("projects/default/jobs/fp8");
      plan.set_epoch(1);
      plan.set_rank(static_cast<uint32_t>(rank));
      plan.set_world_size(layout.ranks());
      plan.set_run_dir((root_ / run).string());
      *plan.mutable_spec() = spec;
      checkpoint::LocalCommitter alone;
      const SavedState saved(plan, alone);
      Position position;
      if (from.empty()) {
        ASSERT_TRUE(replica.init().ok());
      } else {
        const auto restored = saved.restore(from, replica);
        ASSERT_TRUE(restored.ok()) << restored.status();
        position = *restored;
        if (forgets_) forget(replica);
      }
      const auto save = [&] {
        const auto values = SavedState::values_of(replica);
        ASSERT_TRUE(values.ok()) << values.status();
        const auto done = saved.save(replica.shape(), *values, position);
        ASSERT_TRUE(done.ok()) << done.status();
        if (rank == 0) trained.path = done->path;
      };
      if (moves) save();
      for (int i = 0; i < steps; ++i) {
        const auto step = static_cast<int>(++position.step);
        const testing::Batch batch = testing::batch_of(spec, step);
        const auto result = replica.train_step(position.step, testing::share(batch.inputs, replica),
                                               testing::share(batch.targets, replica), false);
        ASSERT_TRUE(result.ok()) << result.status();
        position.consumed_samples += testing::kGlobal;
        if (rank == 0) trained.losses.push_back(result->loss);
      }
      if (steps > 0) save();
    });
    return trained;
  }

  static void forget(Replica& replica) {
    std::vector<float> state(replica.step_state_size());
    ASSERT_TRUE(replica.read_step_state(state).ok());
    std::fill(state.begin() + backend::kStepStates, state.end(), 0.0f);
    ASSERT_TRUE(replica.write_step_state(state).ok());
  }

  static std::unique_ptr<CheckpointReader> open(const std::string& path) {
    auto reader = CheckpointReader::open(FileSystem::posix(), path);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }

  static checkpoint::Comparison compare(const std::string& a, const std::string& b) {
    const auto one = open(a), other = open(b);
    if (one == nullptr || other == nullptr) return {};
    auto compared = checkpoint::compare_checkpoints(*one, *other);
    EXPECT_TRUE(compared.ok()) << compared.status();
    return compared.ok() ? *std::move(compared) : checkpoint::Comparison();
  }
  // Bit for bit, every logical tensor of every kind.
  static void expect_equal(const std::string& a, const std::string& b) {
    const checkpoint::Comparison compared = compare(a, b);
    EXPECT_FALSE(compared.tensors.empty());
    int64_t histories = 0;
    for (const checkpoint::TensorComparison& tensor : compared.tensors) {
      EXPECT_EQ(tensor.difference, Difference::kNone) << tensor.name << " of " << a << " and " << b;
      histories += tensor.kind == TensorKind::kFp8Amax ? 1 : 0;
    }
    EXPECT_EQ(histories, GetParam() == v1::PrecisionSpec::DELAYED ? 5 * 4 : 0);
    EXPECT_TRUE(compared.position.empty());
  }

  // What the steps before have seen, so that equal histories say something.
  static void expect_histories(const std::string& path, size_t steps) {
    const auto reader = open(path);
    ASSERT_NE(reader, nullptr);
    for (const checkpoint::TensorEntry& tensor : reader->manifest().tensors) {
      if (tensor.kind != TensorKind::kFp8Amax) continue;
      ASSERT_EQ(tensor.shape, (std::vector<int64_t>{3, kHistory}));
      std::vector<float> values(3 * kHistory);
      const checkpoint::Box all{{0, 0}, {3, kHistory}};
      ASSERT_TRUE(reader->read_values(tensor.name, tensor.kind, std::span(&all, 1), values).ok());
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i] > 0, i % kHistory < steps) << tensor.name;
    }
  }

  fs::path root_;
  bool forgets_ = false;  // What a checkpoint has of the histories.
};
INSTANTIATE_TEST_SUITE_P(Recipes, Fp8ResumeTest,
                         ::testing::Values(v1::PrecisionSpec::CURRENT, v1::PrecisionSpec::DELAYED,
                                           v1::PrecisionSpec::BLOCK),
                         [](const auto& tested) { return v1::PrecisionSpec::Recipe_Name(tested.param); });

TEST_P(Fp8ResumeTest, InTheSameLayoutNobodyCanTell) {
  for (const Layout& layout : chain()) {
    SCOPED_TRACE(name_of(layout));
    const std::string name = name_of(layout);
    const Trained unbroken = train(layout, "", 2 * kEach, name + "_unbroken");
    const Trained first = train(layout, "", kEach, name + "_broken");
    const Trained second = train(layout, first.path, kEach, name + "_broken");
    std::vector<double> losses = first.losses;
    losses.insert(losses.end(), second.losses.begin(), second.losses.end());
    EXPECT_EQ(losses, unbroken.losses);
    expect_equal(second.path, unbroken.path);
    expect_histories(first.path, kEach);
  }
}

TEST_P(Fp8ResumeTest, AnyLayoutGoesOnWithTheStateOfAnother) {
  std::string from;
  size_t steps = 0;
  for (const Layout& layout : chain()) {
    SCOPED_TRACE(name_of(layout));
    if (!from.empty()) {
      const Trained moved = train(layout, from, 0, name_of(layout) + "_moved", /*moves=*/true);
      expect_equal(moved.path, from);
    }
    const Trained trained = train(layout, from, kEach, name_of(layout));
    for (const double loss : trained.losses) EXPECT_TRUE(std::isfinite(loss));
    from = trained.path;
    steps += kEach;
    expect_histories(from, steps);
  }
}

// There and back again.
TEST_P(Fp8ResumeTest, ADetourThroughAnotherLayoutLeavesNoTrace) {
  const std::vector<Layout> layouts = chain();
  const Trained first = train(layouts[1], "", kEach, "first"),
                straight = train(layouts[1], first.path, kEach, "straight");
  const Trained detour = train(layouts[2], first.path, 0, "detour", /*moves=*/true);
  const Trained back = train(layouts[1], detour.path, kEach, "back");
  EXPECT_EQ(back.losses, straight.losses);
  expect_equal(back.path, straight.path);
}

// What the tests above see where a history does not come along.
TEST_P(Fp8ResumeTest, ALostHistoryIsSeen) {
  if (GetParam() != v1::PrecisionSpec::DELAYED) GTEST_SKIP() << "its scales remember nothing";
  const Layout layout = chain()[1];
  const Trained first = train(layout, "", kEach, "first"), straight = train(layout, first.path, kEach, "straight");
  forgets_ = true;
  const Trained forgot = train(layout, first.path, kEach, "forgot");
  EXPECT_NE(forgot.losses, straight.losses);
  int64_t masters = 0, histories = 0;
  for (const checkpoint::TensorComparison& tensor : compare(forgot.path, straight.path).tensors) {
    if (tensor.difference != Difference::kValues) continue;
    masters += tensor.kind == TensorKind::kMaster ? 1 : 0;
    histories += tensor.kind == TensorKind::kFp8Amax ? 1 : 0;
  }
  EXPECT_GT(masters, 0);
  EXPECT_EQ(histories, 5 * 4);
}

class Fp8GangTest : public testing::GangTest {
 protected:
  v1::JobSpec fp8_spec(uint64_t steps) {
    v1::JobSpec made = spec(steps);
    made.mutable_model()->set_hidden(32);
    made.mutable_model()->set_ffn(32);
    made.mutable_precision()->set_compute(v1::FP8);
    made.mutable_precision()->set_recipe(v1::PrecisionSpec::DELAYED);
    made.mutable_precision()->set_fp8_history(kHistory);
    made.mutable_parallel()->set_zero_stage(3);
    made.mutable_checkpoint()->set_every_steps(2);
    made.mutable_checkpoint()->set_keep(100);
    return made;
  }
  void expect_same_state(const std::string& run, const std::string& other, uint64_t step) const {
    std::unique_ptr<CheckpointReader> readers[2];
    for (int i = 0; i < 2; ++i) {
      auto opened = CheckpointReader::open(FileSystem::posix(), checkpoint(i == 0 ? run : other, step));
      ASSERT_TRUE(opened.ok()) << opened.status();
      readers[i] = *std::move(opened);
    }
    const auto compared = checkpoint::compare_checkpoints(*readers[0], *readers[1]);
    ASSERT_TRUE(compared.ok()) << compared.status();
    for (const checkpoint::TensorComparison& tensor : compared->tensors) {
      EXPECT_EQ(tensor.difference, Difference::kNone) << tensor.name;
    }
  }
};

// A rank is killed; the gang goes on as it was, and then with its two ranks as tensor ranks.
TEST_F(Fp8GangTest, KilledRanksGoOnInTheSameLayoutAndInAnother) {
  Gang unbroken = start("unbroken", fp8_spec(6));
  ASSERT_THAT(wait_all(unbroken), ::testing::Each(0));
  Gang killed = start("broken", fp8_spec(6));
  ASSERT_TRUE(await_events(killed, 1, "step", 3));
  for (auto& rank : killed) rank->end(SIGKILL);
  Gang again = start("broken", fp8_spec(6));
  ASSERT_THAT(wait_all(again), ::testing::Each(0));
  EXPECT_EQ(losses("broken"), losses("unbroken"));
  expect_same_state("broken", "unbroken", 6);
  v1::JobSpec other = fp8_spec(8);
  other.clear_parallel();
  other.mutable_parallel()->set_tensor(2);
  Gang moved = start("broken", other);
  ASSERT_THAT(wait_all(moved), ::testing::Each(0));
  EXPECT_EQ(events(0, "started").at(0).value("resumed_from", ""), checkpoint("broken", 6));
  EXPECT_EQ(losses("broken").size(), 8u);
}

}  // namespace
}  // namespace telar::train
