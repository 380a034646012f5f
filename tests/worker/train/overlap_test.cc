// What a run computes does not depend on what runs beside what: transfers cut up or whole, activations away or not.
#include "tests/worker/train/layouts.h"

namespace telar::train {
namespace {

using testing::Layout;
using testing::Outcome;

constexpr int kFewSteps = 3;

void run_in_order(const Layout& layout, int steps, Outcome& outcome) {
  fakes::ThreadCommunicators communicators;
  testing::RankOptions options = testing::options_of(communicators);
  options.execution = Replica::Execution::kSequential;
  testing::run(spec_of(layout), options, steps, outcome);
}

void expect_same(const Outcome& got, const Outcome& want) {
  ASSERT_FALSE(want.losses.empty());
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_TRUE(got.first_gradients == want.first_gradients);
  EXPECT_TRUE(got.masters == want.masters);
}

class OffloadTest : public ::testing::TestWithParam<Layout> {};

// Not one bit, on lanes as in order. (In order, a pipeline's ranks would each wait in a send for the other's receive.)
TEST_P(OffloadTest, ActivationsComeBackAsTheyLeft) {
  Layout layout = GetParam();
  Outcome stayed, left, in_order;
  testing::run(layout, kFewSteps, stayed);
  layout.offload = true;
  testing::run(layout, kFewSteps, left);
  expect_same(left, stayed);
  if (layout.pipeline > 1) return;
  run_in_order(layout, kFewSteps, in_order);
  expect_same(in_order, stayed);
}

std::vector<Layout> offloaded_layouts() {
  std::vector<Layout> all;
  for (const char* model : {"gpt2", "llama"}) {
    for (const auto recompute : {v1::MemorySpec::NONE, v1::MemorySpec::SELECTIVE, v1::MemorySpec::FULL}) {
      for (Layout layout :
           {Layout{model}, Layout{model, 2}, Layout{model, 1, 2, 1, 0, 0, "1f1b"}, Layout{model, 1, 1, 2, 3},
            Layout{model, 1, 2, 1, 0, 0, "gpipe"}, Layout{model, 2, 2, 1, 0, 0, "zb-v", 2}}) {
        layout.recompute = recompute;
        all.push_back(layout);
      }
    }
    all.push_back({model, 1, 2, 1, 0, 0, "interleaved", 2});
    all.push_back({model, 1, 2, 1, 0, 0, "zb-h1"});
  }
#ifdef __SANITIZE_THREAD__
  all.resize(6);  // One of each kind.
#endif
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layouts, OffloadTest, ::testing::ValuesIn(offloaded_layouts()),
                         [](const auto& tested) { return name_of(tested.param); });

class OverlapTest : public ::testing::TestWithParam<Layout> {};
std::vector<Layout> overlapped_layouts() {
#ifdef __SANITIZE_THREAD__
  return {{"llama", 4}};
#else
  return {{"gpt2", 2}, {"gpt2", 4}, {"llama", 2}, {"llama", 4}, {"llama", 8}};
#endif
}
INSTANTIATE_TEST_SUITE_P(Layouts, OverlapTest, ::testing::ValuesIn(overlapped_layouts()),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(OverlapTest, DoesNotDependOnTiming) {
  Outcome first, second, in_order;
  testing::run(GetParam(), kFewSteps, first);
  testing::run(GetParam(), kFewSteps, second);
  run_in_order(GetParam(), kFewSteps, in_order);
  expect_same(second, first);
  expect_same(in_order, first);
}

// Gathers copy, and sums in f32 keep the order of the ranks; on this backend a product of some rows has their bits of
// the product of all.
TEST_P(OverlapTest, ManyPiecesGiveTheBitsOfOneCollective) {
  Layout layout = GetParam();
  Outcome cut, whole;
  testing::run(layout, kFewSteps, cut);
  layout.overlap = false;
  testing::run(layout, kFewSteps, whole);
  expect_same(cut, whole);
}

}  // namespace
}  // namespace telar::train
