// A job must compute the same however it is laid out. One rank is the oracle: losses, norms, every logical gradient.
#include "tests/worker/train/layouts.h"

namespace telar::train {
namespace {

using testing::kGlobal;
using testing::kSteps;
using testing::Layout;
using testing::Outcome;
using testing::RankOptions;
using testing::spec_of;

// Relative; of gradients and norms to the largest element.
struct Bounds {
  double first_loss = 1e-6, loss = 1e-4, gradient = 1e-5, first_norm = 1e-5, norm = 1e-3;
};

double largest_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double largest = 0, scale = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(got[i]) - want[i]));
    scale = std::max(scale, std::abs(static_cast<double>(want[i])));
  }
  return largest / std::max(scale, 1e-6);
}

void expect_close(const Outcome& got, const Outcome& want, const Bounds& bounds) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    const double loss = i == 0 ? bounds.first_loss : bounds.loss, norm = i == 0 ? bounds.first_norm : bounds.norm;
    EXPECT_NEAR(got.losses[i], want.losses[i], loss * want.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(got.norms[i], want.norms[i], norm * want.norms[i]) << "step " << i + 1;
  }
  ASSERT_EQ(got.first_gradients.tensors().size(), want.first_gradients.tensors().size());
  for (const auto& [name, values] : want.first_gradients.tensors()) {
    const auto found = got.first_gradients.tensors().find(name);
    ASSERT_NE(found, got.first_gradients.tensors().end()) << name;
    ASSERT_EQ(found->second.size(), values.size()) << name;
    if (name.ends_with("k.bias")) continue;  // Nothing but rounding: softmax does not see it.
    EXPECT_LT(largest_difference(found->second, values), bounds.gradient) << name;
  }
}

const Outcome& oracle(const Layout& of) {
  static std::map<std::string, Outcome> outcomes;
  Layout alone;
  alone.model = of.model;
  alone.micro = kGlobal;
  alone.precision = of.precision;
  auto [found, made] = outcomes.try_emplace(name_of(alone));
  if (made) testing::run(alone, kSteps, found->second);
  return found->second;
}

Bounds bounds_of(const Layout& layout) {
  Bounds bounds;
  if (layout.reduce == v1::BF16) {
    // A summand has 8 bits on the wire, and so has the sum; summands may be larger than what they sum up to.
    bounds.gradient = 2e-2;
    bounds.first_norm = 5e-3;
    bounds.loss = 1e-3;
    bounds.norm = 2e-2;
  }
  if (layout.precision == v1::BF16) {
    // All ranks round alike; but a master that is off by its last bit may round to the neighbour in bf16.
    bounds.loss = 2e-3;
    bounds.norm = 2e-2;
    if (layout.tensor > 1) {     // Each rank's part of a sum is rounded to 8 bits before it is summed; queries and keys
      bounds.first_loss = 1e-3;  // have gradients that are small differences of such sums.
      bounds.gradient = 8e-2;
      bounds.first_norm = 1e-2;
      bounds.loss = 5e-3;
      bounds.norm = 5e-2;
    }
  }
  return bounds;
}

class LayoutTest : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutTest, ComputesWhatOneRankDoes) {
  Outcome got;
  testing::run(GetParam(), kSteps, got);
  expect_close(got, oracle(GetParam()), bounds_of(GetParam()));
}

// Through sockets: one layout of each kind.
class GlooTest : public ::testing::TestWithParam<Layout> {};

TEST_P(GlooTest, ComputesWhatOneRankDoes) {
  Outcome got;
  RankOptions options;
  options.bucket_elements = testing::kBucketElements;
  testing::run(spec_of(GetParam()), options, kSteps, got);
  expect_close(got, oracle(GetParam()), bounds_of(GetParam()));
}

std::string test_name(const ::testing::TestParamInfo<Layout>& tested) { return name_of(tested.param); }

Layout with(v1::MemorySpec::Recompute recompute, Layout layout) {
  layout.recompute = recompute;
  return layout;
}

// Under a thread sanitizer the few of GlooTest must do.
std::vector<Layout> listed(std::vector<Layout> layouts) {
#ifdef __SANITIZE_THREAD__
  layouts.resize(1);
#endif
  return layouts;
}

// Every schedule, alone and with the rest.
void add_pipelines(const char* model, std::vector<Layout>& all) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const uint32_t pipeline : {2u, 3u, 5u}) all.push_back({model, 1, pipeline, 1, 0, 0, schedule});
    all.push_back({model, 2, 2, 1, 0, 0, schedule});
    all.push_back({model, 1, 2, 2, 1, 0, schedule, 0, 1});
    all.push_back({model, 2, 2, 2, 3, 0, schedule, 0, 1});
    all.push_back({model, 1, 4, 2, 0, 0, schedule, 0, 8});  // One micro-batch.
    all.push_back({model, 1, 5, 1, 0, 0, schedule, 0, 8});  // Two for five stages, of a layer each.
  }
  for (const char* schedule : {"interleaved", "zb-v"}) {
    all.push_back({model, 1, 2, 1, 0, 0, schedule, 2});
    all.push_back({model, 2, 2, 1, 0, 0, schedule, 2});
    all.push_back({model, 1, 2, 2, 1, 0, schedule, 2});
    all.push_back({model, 1, 2, 2, 2, 0, schedule, 2, 1});
    all.push_back({model, 1, 2, 4, 3, 2, schedule, 2, 1});
    all.push_back({model, 1, 2, 2, 3, 0, schedule, 2, 8});  // One micro-batch.
    all.push_back({model, 1, 2, 1, 0, 0, schedule, 2, 8});  // Two for four stages.
  }
}

void add_replicas(const char* model, std::vector<Layout>& all) {
  for (const uint32_t zero : {0u, 1u, 2u, 3u}) {
    for (const uint32_t data : {2u, 4u, 8u}) all.push_back({model, 1, 1, data, zero});
    all.push_back({model, 2, 1, 4, zero, zero > 0 ? 2u : 0u});
    all.push_back({model, 4, 1, 2, zero});
    all.push_back({model, 2, 2, 2, zero});
    if (zero > 0) all.push_back({model, 1, 1, 8, zero, 4, "", 0, 1});
    if (zero > 0) all.push_back({model, 1, 2, 4, zero, 2, "", 0, 1});
  }
  for (const uint32_t prefetch : {0u, 3u}) {
    all.push_back({model, 1, 1, 2, 3, 0, "", 0, 2, v1::MemorySpec::NONE, prefetch});
    all.push_back({model, 1, 2, 2, 3, 0, "zb-v", 2, 2, v1::MemorySpec::FULL, prefetch});
  }
}

void add_recomputing(const char* model, std::vector<Layout>& all) {
  for (const auto value : {v1::MemorySpec::SELECTIVE, v1::MemorySpec::FULL}) {
    all.push_back(with(value, {model, 2}));
    all.push_back(with(value, {model, 1, 2, 2, 1}));
    all.push_back(with(value, {model, 1, 1, 2, 2, 0, "", 0, 1}));
    all.push_back(with(value, {model, 1, 1, 2, 3}));
    all.push_back(with(value, {model, 2, 2, 2, 3, 0, "zb-h1"}));
    all.push_back(with(value, {model, 2, 2, 2, 1, 0, "zb-v", 2}));
  }
}

Layout whole_collectives(Layout layout) {
  layout.overlap = false;
  return layout;
}

std::vector<Layout> models() {
  std::vector<Layout> all;
  for (const char* model : {"gpt2", "llama"}) {
    for (const uint32_t tensor : {1u, 2u, 4u, 8u}) all.push_back({model, tensor});
    add_replicas(model, all);
    add_pipelines(model, all);
    add_recomputing(model, all);
  }
  // What tied heads or biases change.
  for (const char* model : {"llama_tied", "llama_bias", "gpt2_untie"}) {
    for (const uint32_t tensor : {2u, 4u, 8u}) all.push_back({model, tensor});
    for (const uint32_t zero : {0u, 1u, 2u, 3u}) {
      all.push_back({model, 2, 2, 2, zero, 0, "zb-h1", 0, 1});
      all.push_back({model, 1, 3, 2, zero, 0, "1f1b", 0, 1});
      all.push_back({model, 1, 2, 4, zero, zero > 0 ? 2u : 0u, "interleaved", 2, 1});
      all.push_back({model, 1, 2, 2, zero, 0, "zb-v", 2, 2, v1::MemorySpec::FULL});
    }
    for (const uint32_t tensor : {2u, 4u, 8u}) all.push_back(whole_collectives({model, tensor}));
    all.push_back(whole_collectives({model, 2, 2, 2, 1, 0, "zb-h1"}));
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Models, LayoutTest, ::testing::ValuesIn(listed(models())), test_name);

// Borders of documents must be where the tokens are: on each rank of a tensor group, at every stage, with each
// micro-batch, and again where a layer is recomputed.
std::vector<Layout> documents() {
  std::vector<Layout> all;
  for (const char* model : {"gpt2_documents", "llama_documents"}) {
    all.push_back({model, 1, 1, 1, 0, 0, "", 0, 1});
    all.push_back({model, 4});
    all.push_back({model, 1, 3, 1, 0, 0, "zb-h1", 0, 1});
    all.push_back({model, 1, 2, 2, 1, 0, "interleaved", 2});
    all.push_back({model, 1, 1, 2, 3, 0, "", 0, 1});
    all.push_back(with(v1::MemorySpec::FULL, {model, 2, 2, 2, 3, 0, "zb-v", 2}));
    all.push_back(with(v1::MemorySpec::SELECTIVE, whole_collectives({model, 2})));
    all.push_back({model, 1, 2, 1, 0, 0, "1f1b", 0, 1});
    all.back().offload = true;
    all.push_back({model, 2});
    all.back().precision = v1::BF16;
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Documents, LayoutTest, ::testing::ValuesIn(listed(documents())), test_name);

// Schedules of two micro-batches that nobody generates: backwards in the other order, all weight gradients at the end,
// and stages of one rank next to each other.
constexpr const char* kReversed = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n";
constexpr const char* kWeightsLast = "0F0,0F1,0I0,0I1,0W1,0W0\n1F0,1I0,1F1,1I1,1W1,1W0\n";
constexpr const char* kNeighbours = "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,3F0,3B0,2B0,2F1,3F1,3B1,2B1\n";

std::vector<Layout> odd_cases() {
  std::vector<Layout> all;
  for (const uint32_t tensor : {2u, 8u}) all.push_back({"llama_one_kv", tensor});
  for (const uint32_t tensor : {2u, 4u, 8u})
    all.push_back({"llama_few_words_narrow", tensor});  // Shares of one or two.
  for (const uint32_t tensor : {4u, 8u}) all.push_back({"gpt2_few_words_narrow", tensor});
  all.push_back({"llama_tied_few_words_narrow", 4, 2, 1, 0, 0, "zb-h1"});
  for (const uint32_t tensor : {2u, 4u}) all.push_back({"llama_wide_heads", tensor, 1, 2, 3});
  for (const char* model : {"gpt2_deep", "llama_deep"}) {
    all.push_back({model, 1, 2, 1, 0, 0, "interleaved", 3});
    all.push_back({model, 1, 2, 2, 2, 0, "interleaved", 3});
    all.push_back({model, 1, 2, 1, 0, 0, "interleaved", 3, 8});
    all.push_back({model, 1, 3, 1, 0, 0, "interleaved", 2});
    all.push_back({model, 1, 3, 2, 3, 0, "zb-v", 2, 1});
    all.push_back({model, 1, 7, 1, 0, 0, "zb-h1"});
  }
  for (const char* model : {"gpt2", "llama"}) {
    const auto uneven = [&](std::vector<uint32_t> layers, Layout layout) {
      layout.stage_layers = std::move(layers);
      all.push_back(layout);
    };
    uneven({1, 4}, {model, 1, 2});
    uneven({4, 1}, {model, 2, 2, 2, 2, 0, "zb-h1"});
    uneven({3, 1, 1}, {model, 1, 3, 2, 3, 0, "1f1b"});
    uneven({1, 2, 1, 1}, {model, 1, 2, 2, 1, 0, "zb-v", 2});
    const auto custom = [&](const char* text, Layout layout) {
      layout.schedule = "custom";
      layout.schedule_text = text;
      all.push_back(layout);
    };
    custom(kReversed, {model, 1, 2, 1, 0, 0, "", 0, 8});
    custom(kReversed, {model, 2, 2, 2, 2, 0, "", 0, 4});
    custom(kWeightsLast, {model, 1, 2, 1, 0, 0, "", 0, 8});
    custom(kWeightsLast, {model, 1, 2, 2, 3, 0, "", 0, 4});
    custom(kNeighbours, {model, 1, 2, 1, 0, 0, "", 2, 8});
    custom(kNeighbours, {model, 1, 2, 2, 3, 0, "", 2, 4});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(OddCases, LayoutTest, ::testing::ValuesIn(listed(odd_cases())), test_name);

std::vector<Layout> low_precision() {
  std::vector<Layout> all;
  for (const char* model : {"gpt2", "llama"}) {
    for (Layout layout : std::vector<Layout>{{model, 1, 1, 2, 0},
                                             {model, 1, 1, 4, 1, 2},
                                             {model, 1, 1, 2, 2, 0, "", 0, 1},
                                             {model, 1, 2, 2, 3, 0, "zb-h1"},
                                             {model, 2, 2, 2, 1}}) {
      layout.reduce = v1::BF16;
      all.push_back(layout);
    }
    for (Layout layout : std::vector<Layout>{{model, 1, 1, 1},
                                             {model, 1, 1, 4, 0},
                                             {model, 1, 1, 2, 3},
                                             {model, 1, 1, 4, 2, 2},
                                             {model, 1, 3, 1, 0, 0, "1f1b"},
                                             {model, 1, 2, 2, 1, 0, "zb-v", 2},
                                             {model, 2},
                                             {model, 8},
                                             {model, 2, 2, 2, 3, 0, "zb-h1"}}) {
      layout.precision = v1::BF16;
      all.push_back(layout);
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(LowPrecision, LayoutTest, ::testing::ValuesIn(listed(low_precision())), test_name);

std::vector<Layout> a_dozen() {
  return {{"gpt2", 2},
          {"llama", 4, 1, 2, 3},
          {"llama_one_kv", 8},
          {"gpt2", 1, 1, 2, 0},
          {"llama", 1, 1, 4, 2, 2, "", 0, 1},
          {"gpt2", 1, 1, 2, 3},
          {"llama", 1, 2, 1, 0, 0, "1f1b"},
          {"gpt2", 1, 3, 2, 1, 0, "gpipe", 0, 1},
          {"llama", 1, 2, 2, 1, 0, "interleaved", 2},
          {"gpt2", 2, 2, 2, 3, 0, "zb-h1", 0, 1},
          {"llama_tied", 2, 2, 2, 2, 0, "zb-v", 2},
          with(v1::MemorySpec::FULL, {"llama", 1, 2, 4, 3, 2, "zb-v", 2})};
}
INSTANTIATE_TEST_SUITE_P(ADozen, GlooTest, ::testing::ValuesIn(a_dozen()), test_name);

}  // namespace
}  // namespace telar::train
