#include "worker/plan/resolve_fp8.h"

#include <gmock/gmock.h>

namespace telar::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec fp8_spec(uint32_t tensor = 1) {
  v1::JobSpec spec;
  spec.set_name("small");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture(v1::LLAMA);
  model.set_layers(4);
  model.set_hidden(64);
  model.set_heads(4);
  model.set_kv_heads(2);
  model.set_ffn(128);
  spec.mutable_data()->add_train("/data/a.txt");
  spec.mutable_batch()->set_global(8);
  spec.mutable_batch()->set_sequence_length(32);
  spec.mutable_schedule()->set_steps(10);
  spec.mutable_resources()->set_devices(tensor);
  spec.mutable_parallel()->set_tensor(tensor);
  spec.mutable_precision()->set_compute(v1::FP8);
  return spec;
}

std::vector<std::string> texts(v1::JobSpec spec) {
  std::vector<std::string> all;
  for (const SpecProblem& problem : resolve(spec, v1::ResourceSpec::GPU)) {
    all.push_back(problem.field + ": " + problem.description);
  }
  return all;
}

TEST(ResolveFp8, FillsDefaultsAndIsIdempotent) {
  v1::JobSpec spec = fp8_spec();
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
    EXPECT_EQ(spec.precision().recipe(), v1::PrecisionSpec::CURRENT);
    EXPECT_EQ(spec.precision().fp8_gradients(), v1::PrecisionSpec::E5M2);
    EXPECT_TRUE(spec.precision().fp8_fast_accumulation());
  }
  EXPECT_EQ(fp8_layers(spec), std::vector<bool>(4, true));
}

TEST(ResolveFp8, LayersCanBeKept) {
  v1::JobSpec spec = fp8_spec();
  for (const char* entry : {"last", "1", "first", "first"}) spec.mutable_precision()->add_keep_bf16(entry);
  EXPECT_THAT(texts(spec), IsEmpty());
  EXPECT_THAT(fp8_layers(spec), ElementsAre(false, false, true, false));
  for (const char* entry : {"4", "-1", "2x", "", "middle"}) spec.mutable_precision()->add_keep_bf16(entry);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("spec.precision.keep_bf16[4]: '4' is no layer"), HasSubstr("'-1'"),
                                       HasSubstr("'2x'"), HasSubstr("''"), HasSubstr("'middle'")));
}

TEST(ResolveFp8, BlocksAreWhole) {
  v1::JobSpec spec = fp8_spec();
  spec.mutable_precision()->set_recipe(v1::PrecisionSpec::BLOCK);
  spec.mutable_batch()->set_micro(1);
  EXPECT_THAT(texts(spec),
              ElementsAre(HasSubstr("hidden = 64 is not a multiple of 128, as precision.recipe block needs; "
                                    "use 128, or recipe current"),
                          HasSubstr("head_dim * heads = 64"), HasSubstr("micro * sequence_length = 32")));
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_hidden(128);
  model.set_heads(8);
  model.set_kv_heads(4);
  model.set_head_dim(16);
  spec.mutable_batch()->set_micro(4);
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT(resolve(spec, v1::ResourceSpec::GPU), IsEmpty());
    EXPECT_EQ(spec.precision().fp8_gradients(), v1::PrecisionSpec::E4M3);
    EXPECT_FALSE(spec.precision().fp8_fast_accumulation());
  }
  spec.mutable_precision()->set_fp8_fast_accumulation(true);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("spec.precision.fp8_fast_accumulation: true: recipe block")));
}

TEST(ResolveFp8, DelayedScalesHaveAHistory) {
  v1::JobSpec spec = fp8_spec();
  v1::PrecisionSpec& precision = *spec.mutable_precision();
  precision.set_recipe(v1::PrecisionSpec::DELAYED);
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
    EXPECT_EQ(precision.fp8_history(), 1024u);
    EXPECT_EQ(precision.fp8_amax(), v1::PrecisionSpec::MAX);
    EXPECT_EQ(precision.fp8_margin(), 0u);
  }
  precision.set_fp8_history(65537);
  precision.set_fp8_margin(9);
  EXPECT_THAT(texts(spec), ElementsAre("spec.precision.fp8_history: 65537: at most 65536",
                                       "spec.precision.fp8_margin: 9: at most 8"));
  precision.set_recipe(v1::PrecisionSpec::CURRENT);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("precision.fp8_history: goes with recipe delayed only"),
                                       HasSubstr("precision.fp8_amax"), HasSubstr("precision.fp8_margin")));
}

TEST(ResolveFp8, OtherPrecisionsHaveNoneOfIt) {
  v1::JobSpec spec = fp8_spec();
  v1::PrecisionSpec& precision = *spec.mutable_precision();
  precision.set_compute(v1::BF16);
  precision.set_recipe(v1::PrecisionSpec::CURRENT);
  precision.set_fp8_gradients(v1::PrecisionSpec::E4M3);
  precision.set_fp8_fast_accumulation(false);
  precision.add_keep_bf16("first");
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("precision.recipe: goes with"), HasSubstr("precision.fp8_gradients"),
                                       HasSubstr("precision.fp8_fast_accumulation"), HasSubstr("precision.keep_bf16")));
  EXPECT_THAT(fp8_layers(spec), IsEmpty());
  EXPECT_EQ(fp8_flops_share(spec), 0);
  spec = fp8_spec();
  spec.mutable_precision()->mutable_loss_scale()->set_initial(2);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("not with fp8")));
}

TEST(ResolveFp8, ExtentsAreMultiplesOfSixteenOnEachRank) {
  v1::JobSpec spec = fp8_spec();
  spec.mutable_model()->set_ffn(120);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("spec.model.ffn: ffn = 120 is not a multiple of 16")));
  spec.mutable_model()->set_ffn(144);
  EXPECT_THAT(texts(spec), IsEmpty());
  spec.mutable_precision()->add_keep_bf16("0");
  spec.mutable_model()->set_ffn(120);
  EXPECT_EQ(texts(spec).size(), 1u);
  for (const char* entry : {"1", "2", "3"}) spec.mutable_precision()->add_keep_bf16(entry);
  EXPECT_THAT(texts(spec), IsEmpty());  // None is left that would care.

  spec = fp8_spec(2);
  spec.mutable_model()->set_ffn(144);
  EXPECT_THAT(texts(spec),
              ElementsAre(HasSubstr("spec.model.ffn: ffn / parallel.tensor 2 = 72 is not a multiple of 16")));
  spec.mutable_model()->set_ffn(131);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("131 is not a multiple of parallel.tensor = 2")));

  spec = fp8_spec();
  spec.mutable_model()->set_hidden(72);
  spec.mutable_model()->set_head_dim(18);
  EXPECT_THAT(texts(spec),
              ElementsAre(HasSubstr("spec.model.hidden: hidden = 72"), HasSubstr("head_dim * heads = 72")));

  spec = fp8_spec();
  spec.mutable_batch()->set_sequence_length(36);
  spec.mutable_batch()->set_micro(2);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("spec.batch.sequence_length: micro * sequence_length = 72")));
  spec.mutable_batch()->set_micro(4);
  EXPECT_THAT(texts(spec), IsEmpty());
}

TEST(ResolveFp8, AutoIsNotDecidedHere) {
  v1::JobSpec spec = fp8_spec();
  spec.mutable_precision()->set_compute(v1::AUTO);
  spec.mutable_precision()->set_recipe(v1::PrecisionSpec::DELAYED);
  EXPECT_THAT(texts(spec), ElementsAre(HasSubstr("spec.precision.compute: auto is decided when a job is submitted")));
  spec = fp8_spec();
  spec.mutable_parallel()->set_reduce(v1::AUTO);
  EXPECT_THAT(texts(spec), ElementsAre("spec.parallel.reduce: auto is not possible; use fp32 or bf16"));
}

TEST(ResolveFp8, ShareOfTheFlops) {
  v1::JobSpec spec = fp8_spec();
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  // A layer: q and o 64 x 64, k and v 32 x 64, three of 128 x 64.
  const double layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64;
  const double all = flops_per_token(spec.model(), 32);
  EXPECT_NEAR(fp8_flops_share(spec), 6 * 4 * layer / all, 1e-12);
  EXPECT_LT(fp8_flops_share(spec), 1);
  spec.mutable_precision()->add_keep_bf16("last");
  EXPECT_NEAR(fp8_flops_share(spec), 6 * 3 * layer / all, 1e-12);
}

}  // namespace
}  // namespace telar::plan
