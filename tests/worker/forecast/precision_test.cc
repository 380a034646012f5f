#include "worker/forecast/precision.h"

#include <gmock/gmock.h>

#include "tests/worker/forecast/specs.h"

namespace telar::forecast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Job;

const Job kLarge = {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 8};

v1::JobSpec wanted(const Job& job) {
  v1::JobSpec spec = testing::unresolved(job);
  spec.mutable_batch()->set_micro(job.micro);
  spec.mutable_parallel()->set_tensor(job.tensor);
  spec.mutable_precision()->set_compute(v1::AUTO);
  return spec;
}

// A Llama as wide as that, 16 k tokens a step.
v1::JobSpec narrow(uint32_t hidden) {
  v1::JobSpec spec = wanted({.micro = 16, .global = 16});
  v1::ModelSpec& model = *spec.mutable_model();
  model.Clear();
  model.set_architecture(v1::LLAMA);
  model.set_layers(4);
  model.set_hidden(hidden);
  model.set_heads(hidden / 64);
  model.set_ffn(4 * hidden);
  model.set_vocab(1024);
  return spec;
}

v1::Forecast chosen(const v1::JobSpec& spec, const v1::ClusterShape& cluster = testing::cluster_of(1)) {
  EXPECT_THAT(check_auto_precision(spec, cluster.rates().kind()), IsEmpty());
  auto result = forecast_auto_precision(spec, cluster);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : v1::Forecast();
}

TEST(PrecisionTest, LargeProductsAreInFp8) {
  const v1::Forecast found = chosen(wanted(kLarge));
  EXPECT_EQ(found.precision().compute(), v1::FP8);
  EXPECT_EQ(found.spec().precision().compute(), v1::FP8);
  EXPECT_EQ(found.spec().precision().recipe(), v1::PrecisionSpec::CURRENT);
  EXPECT_EQ(found.precision().fp8_step_seconds(), found.step_seconds());
  EXPECT_THAT(found.precision().reason(), AllOf(HasSubstr("ms in bf16"), HasSubstr("ms in fp8"), HasSubstr("% less")));
  v1::JobSpec plain = testing::spec_of(kLarge);
  EXPECT_EQ(found.precision().plain_step_seconds(), forecast(plain, testing::cluster_of(1))->step_seconds());
}

// Quantising costs more than the products gain, or gains less than a forecast can tell.
TEST(PrecisionTest, SmallOnesAreNot) {
  const v1::Forecast small = chosen(narrow(128));
  EXPECT_EQ(small.precision().compute(), v1::BF16);
  EXPECT_EQ(small.spec().precision().compute(), v1::BF16);
  EXPECT_GT(small.precision().fp8_step_seconds(), small.precision().plain_step_seconds());
  EXPECT_THAT(small.precision().reason(), HasSubstr("% more"));
  // There is one line between the two sides.
  int switched = 0;
  v1::Precision last = v1::BF16;
  for (const uint32_t hidden : {128, 256, 512, 1024, 2048, 4096}) {
    const v1::PrecisionChoice choice = chosen(narrow(hidden)).precision();
    EXPECT_EQ(choice.compute() == v1::FP8, choice.fp8_step_seconds() < (1 - kFp8Margin) * choice.plain_step_seconds())
        << hidden << ": " << choice.reason();
    switched += choice.compute() != last ? 1 : 0;
    last = choice.compute();
  }
  EXPECT_EQ(switched, 1);
  EXPECT_EQ(last, v1::FP8);
}

TEST(PrecisionTest, WhatFp8CannotBeIsNotInIt) {
  const auto why_not = [](const v1::JobSpec& spec, const v1::ClusterShape& cluster) {
    const v1::Forecast found = chosen(spec, cluster);
    EXPECT_EQ(found.precision().compute(), v1::BF16);
    EXPECT_EQ(found.precision().fp8_step_seconds(), 0);
    EXPECT_EQ(found.precision().plain_step_seconds(), found.step_seconds());
    return found.precision().reason();
  };
  v1::ClusterShape cluster = testing::cluster_of(1);
  v1::JobSpec odd = wanted(kLarge);
  odd.mutable_model()->set_ffn(14344);
  EXPECT_THAT(why_not(odd, cluster), HasSubstr("fp8 cannot be: spec.model.ffn: ffn = 14344 is not a multiple of 16"));
  v1::JobSpec block = wanted(kLarge);
  block.mutable_precision()->set_recipe(v1::PrecisionSpec::BLOCK);
  EXPECT_EQ(chosen(block).precision().compute(), v1::FP8);
  block.mutable_model()->set_ffn(14352);  // Goes with the other recipes.
  EXPECT_THAT(why_not(block, cluster), HasSubstr("multiple of 128"));
  block.mutable_model()->set_ffn(14336);
  cluster.mutable_rates()->mutable_products()->set_fp8_block_share(0);
  EXPECT_THAT(why_not(block, cluster), HasSubstr("h200 has no products for recipe block"));
  cluster.mutable_rates()->set_peak_flops_fp8(0);
  EXPECT_THAT(why_not(wanted(kLarge), cluster), HasSubstr("h200 multiplies no fp8"));
}

TEST(PrecisionTest, CpusKeepTheirDefault) {
  v1::JobSpec spec = narrow(128);
  spec.mutable_precision()->set_recipe(v1::PrecisionSpec::DELAYED);
  const v1::Forecast found = chosen(spec, testing::cluster_of(1, "cpu"));
  EXPECT_EQ(found.precision().compute(), v1::FP32);
  EXPECT_EQ(found.spec().precision().recipe(), v1::PrecisionSpec::RECIPE_UNSPECIFIED);
}

// The one that fits, whatever it takes: FP8 keeps less of a layer, and more of its weights.
TEST(PrecisionTest, WhatFitsComesFirst) {
  v1::ClusterShape cluster = testing::cluster_of(1);
  const v1::JobSpec spec = wanted(kLarge);
  v1::JobSpec plain = without_fp8(spec, v1::ResourceSpec::GPU), eight = spec;
  eight.mutable_precision()->set_compute(v1::FP8);
  ASSERT_THAT(plan::resolve(plain, v1::ResourceSpec::GPU), IsEmpty());
  ASSERT_THAT(plan::resolve(eight, v1::ResourceSpec::GPU), IsEmpty());
  const uint64_t bf16 = forecast(plain, cluster)->ranks(0).total_bytes();
  const uint64_t fp8 = forecast(eight, cluster)->ranks(0).total_bytes();
  ASSERT_NE(bf16, fp8);
  cluster.mutable_rates()->set_memory_bytes((bf16 + fp8) / 2 + cluster.rates().reserved_bytes());
  const v1::Forecast found = chosen(spec, cluster);
  EXPECT_TRUE(found.fits());
  EXPECT_EQ(found.precision().compute(), bf16 < fp8 ? v1::BF16 : v1::FP8);
  EXPECT_THAT(found.precision().reason(), HasSubstr("does not fit"));
}

TEST(PrecisionTest, LayoutsAreFoundForEachPrecision) {
  v1::JobSpec spec = wanted(kLarge);
  spec.mutable_batch()->clear_micro();
  spec.mutable_batch()->set_global(16);
  spec.mutable_resources()->set_devices(2);
  spec.clear_parallel();
  spec.mutable_parallel()->set_auto_(true);
  ASSERT_THAT(check_auto_precision(spec, v1::ResourceSpec::GPU), IsEmpty());
  const SearchOptions few{.best = 1, .exact = 2};
  const auto found = search_auto_precision(spec, testing::cluster_of(1), few);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->best_size(), 1);
  EXPECT_EQ(found->precision().compute(), v1::FP8);
  EXPECT_EQ(found->best(0).spec().precision().compute(), v1::FP8);
  EXPECT_EQ(found->precision().fp8_step_seconds(), found->best(0).step_seconds());
  v1::JobSpec plain = without_fp8(spec, v1::ResourceSpec::GPU);
  EXPECT_EQ(found->precision().plain_step_seconds(),
            search(plain, testing::cluster_of(1), few)->best(0).step_seconds());
}

TEST(PrecisionTest, MistakesAreTold) {
  v1::JobSpec spec = wanted(kLarge);
  spec.mutable_precision()->add_keep_bf16("80");
  spec.mutable_precision()->set_fp8_margin(1);
  const auto fields = [](const v1::JobSpec& wrong) {
    std::vector<std::string> names;
    for (const plan::SpecProblem& problem : check_auto_precision(wrong, v1::ResourceSpec::GPU)) {
      names.push_back(problem.field);
    }
    return names;
  };
  EXPECT_THAT(fields(spec), ::testing::ElementsAre("spec.precision.fp8_margin", "spec.precision.keep_bf16[0]"));
  spec = wanted(kLarge);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(8);
  EXPECT_THAT(fields(spec), ::testing::ElementsAre("spec.precision.loss_scale"));
  spec = wanted(kLarge);
  spec.mutable_batch()->set_global(7);
  EXPECT_THAT(fields(spec), ::testing::ElementsAre("spec.batch.micro"));
}

}  // namespace
}  // namespace telar::forecast
