// Training in FP8, as the CPU emulates it: near bf16, the same bits where bf16 has them, and near itself over tensor
// ranks. On a GPU, TELAR_BACKEND=cuda train_fp8_test --gtest_filter=*OneDevice*.
#include <cstdlib>

#include "tests/worker/train/layouts.h"
#include "worker/backend/module.h"

namespace telar::train {
namespace {

using testing::Batch;
using testing::Layout;
using testing::Logical;
using testing::Outcome;

constexpr auto kNone = v1::MemorySpec::NONE, kSelective = v1::MemorySpec::SELECTIVE, kFull = v1::MemorySpec::FULL;
constexpr int kFewSteps = 3, kManySteps = 50;
// Of the loss: how far FP8 may be from bf16, and two tensor ranks from one, of which docs/fp8.md derives the share.
constexpr double kFromBf16 = 2e-3, kFromOneRank = 0.61 * kFromBf16;

using Recipe = v1::PrecisionSpec::Recipe;

Layout in(v1::Precision precision, Layout layout) {
  layout.precision = precision;
  return layout;
}

// Few entries, so that the tests' steps fill a history. Behind resolving, which asks for whole blocks: most of these
// models' are short.
v1::JobSpec with(Recipe recipe, v1::JobSpec spec) {
  v1::PrecisionSpec& precision = *spec.mutable_precision();
  if (precision.compute() != v1::FP8) return spec;
  precision.set_recipe(recipe);
  if (recipe == v1::PrecisionSpec::BLOCK) {
    precision.set_fp8_gradients(v1::PrecisionSpec::E4M3);
    precision.set_fp8_fast_accumulation(false);
  }
  if (recipe == v1::PrecisionSpec::DELAYED) {
    precision.set_fp8_history(2);
    precision.set_fp8_amax(v1::PrecisionSpec::MAX);
  }
  return spec;
}

// Something to learn: three targets of four follow from the token before them.
Batch rule_of(const v1::JobSpec& spec, int step) {
  std::mt19937 random(static_cast<uint32_t>(step));
  const uint32_t vocab = spec.model().vocab();
  Batch batch;
  for (uint32_t i = 0; i < spec.batch().global() * spec.batch().sequence_length(); ++i) {
    const uint32_t token = random() % vocab;
    batch.inputs.push_back(static_cast<int32_t>(token));
    batch.targets.push_back(static_cast<int32_t>(random() % 4 == 0 ? random() % vocab : (7 * token + 3) % vocab));
  }
  return batch;
}

absl::StatusOr<StepResult> step_of(Replica& replica, int step) {
  const Batch batch = rule_of(replica.shape().spec, step);
  return replica.train_step(static_cast<uint64_t>(step), testing::share(batch.inputs, replica),
                            testing::share(batch.targets, replica), false);
}

// Device `index` of the backend that was asked for.
absl::StatusOr<std::unique_ptr<backend::Device>> open_asked(const char* backend, int index) {
  return backend::open_device(backend, {.index = index, .deterministic = true});
}

std::vector<double> losses_of(const v1::JobSpec& spec, int steps) {
  fakes::ThreadCommunicators communicators;
  testing::RankOptions options = testing::options_of(communicators);
  if (const char* backend = std::getenv("TELAR_BACKEND"); backend != nullptr) {
    options.device = [backend](int rank) {
      auto device = open_asked(backend, rank);
      EXPECT_TRUE(device.ok()) << device.status();
      if (!device.ok()) std::abort();
      return *std::move(device);
    };
  }
  // GPUs of one process map each other's memory: making a graph on one could wait for a kernel of another that waits
  // for the graph. Ranks are processes of their own; only here they are threads.
  if (spec.resources().devices() > 1) setenv("TELAR_GRAPHS", "0", 1);
  std::vector<double> losses;
  testing::on_all_ranks(spec, options, [&](int rank, Replica& replica) {
    ASSERT_TRUE(replica.init().ok());
    for (int step = 1; step <= steps; ++step) {
      const auto result = step_of(replica, step);
      ASSERT_TRUE(result.ok()) << result.status();
      if (rank == 0) losses.push_back(result->loss);
    }
  });
  unsetenv("TELAR_GRAPHS");
  return losses;
}

// Two micro-batches, and weights as models begin with: those of layouts.h are large and make a step's loss chaotic.
v1::JobSpec learning_spec(v1::Precision precision, const char* model, uint32_t tensor = 1) {
  Layout layout = in(precision, {model, tensor});
  layout.micro = 8;
  v1::JobSpec spec = testing::spec_of(layout);
  spec.mutable_model()->set_init_stddev(0.02);
  spec.mutable_optimizer()->set_learning_rate(1e-3 * 64 / spec.model().hidden());  // The wider the smaller.
  return spec;
}

void expect_within(const std::vector<double>& got, const std::vector<double>& want, double relative) {
  ASSERT_EQ(got.size(), static_cast<size_t>(kManySteps));
  ASSERT_EQ(want.size(), got.size());
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(got[i] / want[i] - 1));
  ::testing::Test::RecordProperty("worst", std::to_string(worst));
  EXPECT_LT(worst, relative);
  EXPECT_LT(want.back(), 0.85 * want.front()) << "nothing was learned";
}

class Fp8TrainingTest : public ::testing::TestWithParam<std::tuple<const char*, Recipe>> {
 protected:
  const char* model() const { return std::get<0>(GetParam()); }
  Recipe recipe() const { return std::get<1>(GetParam()); }
  // One that a GPU, too, runs by this recipe.
  const char* whole_model() const {
    if (recipe() != v1::PrecisionSpec::BLOCK) return model();
    return std::string_view(model()).starts_with("gpt2") ? "gpt2_blocks" : "llama_blocks";
  }
  // By the recipe, which the spec goes with.
  v1::JobSpec by_recipe(v1::JobSpec spec) const {
    spec = with(recipe(), std::move(spec));
    for (const plan::SpecProblem& problem : plan::resolve(spec, v1::ResourceSpec::CPU)) {
      ADD_FAILURE() << problem.field << ": " << problem.description;
    }
    return spec;
  }
  v1::JobSpec learning(uint32_t tensor = 1) const { return by_recipe(learning_spec(v1::FP8, whole_model(), tensor)); }
  void expect_same(const std::vector<Layout>& layouts) const;
};
INSTANTIATE_TEST_SUITE_P(Models, Fp8TrainingTest,
                         ::testing::Combine(::testing::Values("gpt2_even", "llama_even"),
                                            ::testing::Values(v1::PrecisionSpec::CURRENT, v1::PrecisionSpec::DELAYED,
                                                              v1::PrecisionSpec::BLOCK)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + std::string("_") +
                                  v1::PrecisionSpec::Recipe_Name(std::get<1>(tested.param));
                         });

TEST_P(Fp8TrainingTest, FiftyStepsOfOneDeviceAreNearThoseInBf16) {
  const std::vector<double> bf16 = losses_of(learning_spec(v1::BF16, whole_model()), kManySteps);
  v1::JobSpec spec = learning();
  const std::vector<double> hybrid = losses_of(spec, kManySteps);
  expect_within(hybrid, bf16, kFromBf16);
  EXPECT_NE(hybrid, bf16);
  if (recipe() != v1::PrecisionSpec::CURRENT) return;
  spec.mutable_precision()->set_fp8_gradients(v1::PrecisionSpec::E4M3);
  const std::vector<double> e4m3 = losses_of(spec, kManySteps);
  expect_within(e4m3, bf16, kFromBf16);
  EXPECT_NE(e4m3, hybrid);
}

// What tensor ranks round is another partial sum each, in bf16, as without FP8; where that moves a value over a border
// between two FP8 numbers, it counts as FP8's own rounding does, only more rarely.
TEST_P(Fp8TrainingTest, TwoTensorRanksAreNearOne) {
  if (const char* backend = std::getenv("TELAR_BACKEND"); backend != nullptr) {
    if (const auto second = open_asked(backend, 1); !second.ok()) GTEST_SKIP() << second.status();
  }
  const std::vector<double> one = losses_of(learning(), kManySteps);
  const std::vector<double> two = losses_of(learning(2), kManySteps);
  expect_within(two, one, kFromOneRank);
  EXPECT_NEAR(two[0], one[0], 5e-4 * one[0]);
}

TEST_P(Fp8TrainingTest, KeptLayersOfOneDeviceAreThoseOfBf16) {
  const auto spec_in = [&](v1::Precision precision) {
    Layout layout = in(precision, {whole_model()});
    layout.micro = 8;
    return testing::spec_of(layout);
  };
  v1::JobSpec spec = by_recipe(spec_in(v1::FP8));
  const std::vector<double> bf16 = losses_of(spec_in(v1::BF16), kFewSteps);
  for (uint32_t layer = 0; layer < spec.model().layers(); ++layer) {
    spec.mutable_precision()->add_keep_bf16(std::to_string(layer));
  }
  EXPECT_EQ(losses_of(spec, kFewSteps), bf16);
  spec.mutable_precision()->clear_keep_bf16();
  EXPECT_NE(losses_of(spec, kFewSteps), bf16);
}

Outcome& trained(Outcome& outcome, const Layout& layout, Recipe recipe) {
  v1::JobSpec spec = with(recipe, testing::spec_of(layout));
  spec.mutable_optimizer()->set_clip_norm(0);  // A norm depends on who sums what.
  fakes::ThreadCommunicators communicators;
  testing::run(spec, testing::options_of(communicators), kFewSteps, outcome);
  return outcome;
}

void Fp8TrainingTest::expect_same(const std::vector<Layout>& layouts) const {
  Outcome first;
  trained(first, in(v1::FP8, layouts[0]), recipe());
  for (size_t i = 1; i < layouts.size(); ++i) {
    SCOPED_TRACE(name_of(layouts[i]) + " against " + name_of(layouts[0]));
    Outcome other;
    trained(other, in(v1::FP8, layouts[i]), recipe());
    EXPECT_EQ(other.losses, first.losses);
    EXPECT_TRUE(other.first_gradients == first.first_gradients);
    EXPECT_TRUE(other.masters == first.masters);
    EXPECT_FALSE(first.masters.tensors().empty());
  }
}

Layout recomputing(v1::MemorySpec::Recompute recompute, Layout layout) {
  layout.recompute = recompute;
  return layout;
}

Layout offloading(Layout layout) {
  layout.offload = true;
  return layout;
}

TEST_P(Fp8TrainingTest, RecomputingAndOffloadingChangeNoBit) {
  const char* const model = this->model();
  std::vector<Layout> layouts = {{model, 2}};
  if (recipe() == v1::PrecisionSpec::CURRENT) layouts = {{model}, {model, 2}, {model, 1, 1, 2, 3}};
  for (const Layout& layout : layouts) {
    expect_same({recomputing(kNone, layout), recomputing(kSelective, layout), recomputing(kFull, layout),
                 offloading(layout), offloading(recomputing(kSelective, layout))});
  }
}

TEST_P(Fp8TrainingTest, ZeroStagesAndPrefetchChangeNoBit) {
  const char* const model = this->model();
  if (recipe() != v1::PrecisionSpec::CURRENT) {
    return expect_same({{model, 1, 1, 2, 0, 0, "", 0, 8},
                        {model, 1, 1, 2, 2, 0, "", 0, 8},
                        {model, 1, 1, 2, 3, 0, "", 0, 8, kFull, 3}});
  }
  expect_same({{model, 1, 1, 2, 0, 0, "", 0, 8},
               {model, 1, 1, 2, 1, 0, "", 0, 8},
               {model, 1, 1, 2, 2, 0, "", 0, 8},
               {model, 1, 1, 2, 3, 0, "", 0, 8},
               {model, 1, 1, 2, 3, 0, "", 0, 8, kNone, 0},
               {model, 1, 1, 2, 3, 0, "", 0, 8, kFull, 3}});
  expect_same({{model, 1, 1, 2, 2}, {model, 1, 1, 2, 3}});
}

TEST_P(Fp8TrainingTest, PipelinesChangeNoBit) {
  const char* const model = this->model();
  if (testing::spec_of({model}).model().tied_head())
    GTEST_SKIP() << "a tied table's gradients are summed in another order";
  if (recipe() != v1::PrecisionSpec::CURRENT) return expect_same({{model}, {model, 1, 2, 1, 0, 0, "zb-v", 2}});
  expect_same({{model},
               {model, 1, 2, 1, 0, 0, "1f1b"},
               {model, 1, 2, 1, 0, 0, "zb-h1"},
               {model, 1, 2, 1, 0, 0, "zb-v", 2},
               recomputing(kFull, {model, 1, 2, 1, 0, 0, "interleaved", 2})});
}

// Whole collectives against those that are cut up beside the products.
TEST_P(Fp8TrainingTest, OverlappingTensorCollectivesChangesNoBit) {
  Layout whole{model(), 2};
  whole.overlap = false;
  expect_same({whole, {model(), 2}});
}

// Masters, moments and the step state are all that a step depends on. With current scales that only counts.
TEST_P(Fp8TrainingTest, ResumesToTheBit) {
  const v1::JobSpec spec = with(recipe(), testing::spec_of(in(v1::FP8, {model()})));
  fakes::InProcessStore store;
  const testing::Rank first = testing::make_rank(spec, store, 0, {}), second = testing::make_rank(spec, store, 0, {});
  ASSERT_TRUE(first.replica->init().ok());
  for (int step = 1; step <= kFewSteps; ++step) ASSERT_TRUE(step_of(*first.replica, step).ok());
  const auto copy = [&](Replica::Kind kind) {
    for (const parallel::Piece& piece : first.replica->pieces()) {
      std::vector<float> values(static_cast<size_t>(piece.slice.count));
      ASSERT_TRUE(first.replica->read(kind, piece, values).ok());
      ASSERT_TRUE(second.replica->write(kind, piece, values).ok());
    }
  };
  for (const Replica::Kind kind : {Replica::Kind::kMaster, Replica::Kind::kExpAvg, Replica::Kind::kExpAvgSq})
    copy(kind);
  std::vector<float> counts(first.replica->step_state_size());
  ASSERT_TRUE(first.replica->read_step_state(counts).ok());
  ASSERT_TRUE(second.replica->write_step_state(counts).ok());
  ASSERT_TRUE(second.replica->masters_changed().ok());
  for (int step = kFewSteps + 1; step <= 2 * kFewSteps; ++step) {
    const auto want = step_of(*first.replica, step), got = step_of(*second.replica, step);
    ASSERT_TRUE(want.ok() && got.ok());
    EXPECT_EQ(got->loss, want->loss);
    EXPECT_EQ(got->grad_norm, want->grad_norm);
  }
}

// One weight that is not finite makes the whole matrix NaN, and with it the step, which is skipped.
TEST_P(Fp8TrainingTest, StepsThatAreNotFiniteAreSkipped) {
  const v1::JobSpec spec = with(recipe(), testing::spec_of(in(v1::FP8, {model()})));
  for (const float odd : {HUGE_VALF, std::nanf("")}) {
    fakes::InProcessStore store;
    const testing::Rank rank = testing::make_rank(spec, store, 0, {});
    ASSERT_TRUE(rank.replica->init().ok());
    for (const parallel::Piece& piece : rank.replica->pieces()) {
      if (testing::parameter_of(*rank.replica, piece).name != "layers.1.q.weight") continue;
      std::vector<float> values(static_cast<size_t>(piece.slice.count));
      ASSERT_TRUE(rank.replica->read(Replica::Kind::kMaster, piece, values).ok());
      values[5] = odd;
      ASSERT_TRUE(rank.replica->write(Replica::Kind::kMaster, piece, values).ok());
    }
    ASSERT_TRUE(rank.replica->masters_changed().ok());
    const auto result = step_of(*rank.replica, 1);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->skipped);
    EXPECT_FALSE(std::isfinite(result->loss));
    std::vector<float> state(rank.replica->step_state_size());
    ASSERT_TRUE(rank.replica->read_step_state(state).ok());
    EXPECT_TRUE(std::all_of(state.begin(), state.end(), [](float value) { return std::isfinite(value); }));
  }
}

// Of every rank, behind the last of a few steps.
std::vector<std::vector<float>> step_states(const Layout& layout) {
  const v1::JobSpec spec = with(v1::PrecisionSpec::DELAYED, testing::spec_of(in(v1::FP8, layout)));
  fakes::ThreadCommunicators communicators;
  std::vector<std::vector<float>> states(layout.ranks());
  testing::on_all_ranks(spec, testing::options_of(communicators), [&](int rank, Replica& replica) {
    ASSERT_TRUE(replica.init().ok());
    for (int step = 1; step <= kFewSteps; ++step) ASSERT_TRUE(step_of(replica, step).ok());
    std::vector<float>& state = states[static_cast<size_t>(rank)];
    state.resize(replica.step_state_size());
    ASSERT_TRUE(replica.read_step_state(state).ok());
  });
  return states;
}

// So any layout goes on from what any other saved.
TEST(DelayedScales, AllRanksRememberTheSame) {
  const std::vector<float> want = step_states({"llama_even"})[0];
  ASSERT_EQ(want.size(), backend::kStepStates + 5 * 4 * 3 * 2u);
  for (size_t i = backend::kStepStates; i < want.size(); ++i) EXPECT_GT(want[i], 0) << i;
  for (const Layout& layout : {Layout{"llama_even", 1, 2}, Layout{"llama_even", 2, 1, 2, 3}}) {
    const std::vector<std::vector<float>> states = step_states(layout);
    for (const std::vector<float>& state : states) EXPECT_EQ(state, states[0]) << name_of(layout);
    for (size_t i = 0; i < want.size(); ++i) {  // Tensor ranks and replicas add up in another order.
      EXPECT_NEAR(states[0][i], want[i], layout.tensor == 1 ? 0 : 0.5 * want[i]) << name_of(layout) << ": " << i;
    }
  }
}

// What a step is scaled by is what the steps before had: with one that is far too small its tensors saturate, and the
// next has what this one saw.
TEST(DelayedScales, ComeFromTheHistory) {
  v1::JobSpec spec = with(v1::PrecisionSpec::DELAYED, testing::spec_of(in(v1::FP8, {"llama_even"})));
  const auto second_loss = [&](float factor) {
    fakes::InProcessStore store;
    const testing::Rank rank = testing::make_rank(spec, store, 0, {});
    EXPECT_TRUE(rank.replica->init().ok() && step_of(*rank.replica, 1).ok());
    std::vector<float> state(rank.replica->step_state_size());
    EXPECT_TRUE(rank.replica->read_step_state(state).ok());
    for (size_t i = backend::kStepStates; i < state.size(); ++i) state[i] *= factor;
    EXPECT_TRUE(rank.replica->write_step_state(state).ok());
    const auto result = step_of(*rank.replica, 2);
    EXPECT_TRUE(result.ok()) << result.status();
    const std::vector<float> before = state;
    EXPECT_TRUE(rank.replica->read_step_state(state).ok());
    for (size_t i = backend::kStepStates; i < state.size(); i += 2) EXPECT_EQ(state[i + 1], before[i]) << i;
    return result.ok() ? result->loss : 0;
  };
  const double right = second_loss(1);
  EXPECT_EQ(second_loss(1), right);
  EXPECT_EQ(second_loss(0), second_loss(0));
  EXPECT_NE(second_loss(0x1p-6f), right);
  spec.mutable_precision()->set_fp8_margin(6);  // Undoes that.
  EXPECT_EQ(second_loss(0x1p-6f), right);
}

}  // namespace
}  // namespace telar::train
