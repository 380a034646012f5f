#include "worker/plan/resolve.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>

#include "worker/plan/presets.h"

namespace telar::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec small_llama() {
  v1::JobSpec spec;
  spec.set_name("small");
  auto* model = spec.mutable_model();
  model->set_architecture(v1::LLAMA);
  model->set_layers(2);
  model->set_hidden(64);
  model->set_heads(4);
  model->set_kv_heads(2);
  model->set_ffn(128);
  spec.mutable_data()->add_train("/data/a.txt");
  spec.mutable_batch()->set_global(8);
  spec.mutable_batch()->set_sequence_length(32);
  spec.mutable_schedule()->set_steps(10);
  spec.mutable_resources()->set_devices(2);
  return spec;
}

std::vector<std::string> fields(const std::vector<SpecProblem>& problems) {
  std::vector<std::string> out;
  for (const SpecProblem& problem : problems) out.push_back(problem.field);
  return out;
}

TEST(Resolve, FillsDefaultsAndIsIdempotent) {
  v1::JobSpec spec = small_llama();
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  EXPECT_EQ(spec.model().vocab(), 257u);
  EXPECT_EQ(spec.model().head_dim(), 16u);
  EXPECT_EQ(spec.parallel().data(), 2u);
  EXPECT_EQ(spec.batch().micro(), 4u);
  EXPECT_EQ(spec.precision().compute(), v1::FP32);
  EXPECT_EQ(spec.optimizer().beta2(), 0.95);
  EXPECT_EQ(spec.memory().recompute(), v1::MemorySpec::NONE);
  v1::JobSpec again = spec;
  EXPECT_THAT(resolve(again, v1::ResourceSpec::GPU), IsEmpty());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, again));
}

TEST(Resolve, PreparedDataTellsItsTokenizerItself) {
  v1::JobSpec spec = small_llama();
  spec.mutable_data()->set_format(v1::DataSpec::PREPARED);
  auto problems = resolve(spec, v1::ResourceSpec::CPU);
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems[0].field, "spec.model.vocab");
  EXPECT_THAT(problems[0].description, HasSubstr("vocabulary of the data's tokenizer, which telar data stats prints"));
  EXPECT_EQ(spec.tokenizer().kind(), v1::TokenizerSpec::KIND_UNSPECIFIED);
  spec.mutable_model()->set_vocab(50257);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  spec.mutable_tokenizer()->set_kind(v1::TokenizerSpec::BYTE);  // Compared with the data by the workers.
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
}

TEST(Resolve, MegatronsDataIsIds) {
  v1::JobSpec spec = small_llama();
  spec.mutable_data()->set_format(v1::DataSpec::MEGATRON);
  spec.mutable_model()->set_vocab(50257);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  EXPECT_EQ(spec.tokenizer().kind(), v1::TokenizerSpec::NONE);
  spec.mutable_tokenizer()->set_kind(v1::TokenizerSpec::BYTE);  // It may have made the ids.
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
}

TEST(Resolve, KeepsTheChosenRecomputeAndRefusesAnUnknownOne) {
  v1::JobSpec spec = small_llama();
  spec.mutable_memory()->set_recompute(v1::MemorySpec::FULL);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  EXPECT_EQ(spec.memory().recompute(), v1::MemorySpec::FULL);
  spec.mutable_memory()->set_recompute(static_cast<v1::MemorySpec::Recompute>(7));
  const auto problems = resolve(spec, v1::ResourceSpec::CPU);
  ASSERT_THAT(fields(problems), ElementsAre("spec.memory.recompute"));
  EXPECT_THAT(problems[0].description, HasSubstr("7 is not known; use none, selective or full"));
}

// A client of another version may send numbers that have no name here; so may anybody's own.
TEST(Resolve, RefusesEveryEnumsNumberThatHasNoName) {
  v1::JobSpec spec = small_llama();
  ASSERT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  int enums = 0;
  const auto visit = [&](const auto& self, google::protobuf::Message& message, const std::string& path) -> void {
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const google::protobuf::FieldDescriptor* field = message.GetDescriptor()->field(i);
      if (field->is_map()) continue;
      const bool repeated = field->is_repeated();
      const std::string name = path + "." + field->name() + (repeated ? "[0]" : "");
      if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
        self(self, repeated ? *reflection.AddMessage(&message, field) : *reflection.MutableMessage(&message, field),
             name);
      } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_ENUM) {
        ++enums;
        repeated ? reflection.AddEnumValue(&message, field, 99) : reflection.SetEnumValue(&message, field, 99);
        v1::JobSpec tried = spec;
        const auto problems = resolve(tried, v1::ResourceSpec::CPU);
        ASSERT_THAT(problems, ::testing::Not(IsEmpty())) << name;
        EXPECT_EQ(problems[0].field, name);
        EXPECT_THAT(problems[0].description, HasSubstr("99 is not known; use "));
        repeated ? reflection.ClearField(&message, field) : reflection.SetEnumValue(&message, field, 0);
      }
    }
  };
  visit(visit, spec, "spec");
  EXPECT_GT(enums, 10) << "found in the spec";
}

TEST(Resolve, ReportsEverythingAtOnce) {
  v1::JobSpec spec = small_llama();
  spec.set_name("Bad Name");
  spec.mutable_model()->set_heads(5);
  spec.mutable_model()->set_vocab(100);
  spec.mutable_batch()->set_global(9);
  spec.mutable_schedule()->set_warmup_steps(11);
  EXPECT_THAT(fields(resolve(spec, v1::ResourceSpec::CPU)),
              ElementsAre("spec.name", "spec.model.vocab", "spec.model.heads", "spec.model.kv_heads",
                          "spec.batch.global", "spec.schedule.warmup_steps"));
}

TEST(Resolve, TheBestCheckpointNeedsEvaluations) {
  v1::JobSpec spec = small_llama();
  spec.mutable_checkpoint()->set_keep_best(2);
  spec.mutable_checkpoint()->set_stop_grace_seconds(3601);
  EXPECT_THAT(fields(resolve(spec, v1::ResourceSpec::CPU)),
              ElementsAre("spec.checkpoint.keep_best", "spec.checkpoint.stop_grace_seconds"));
  spec.mutable_eval()->set_every_steps(100);
  spec.mutable_checkpoint()->set_stop_grace_seconds(3600);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
}

TEST(Resolve, SuggestsThePresetThatWasMeant) {
  v1::JobSpec spec = small_llama();
  spec.mutable_model()->set_preset("llama3-8B");
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU),
              Contains(Field(&SpecProblem::description, HasSubstr("did you mean 'llama3-8b'"))));
}

TEST(Resolve, ScalesTheLossInFp16Only) {
  v1::JobSpec spec = small_llama();
  spec.mutable_precision()->set_compute(v1::FP16);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  const v1::LossScaleSpec& scale = spec.precision().loss_scale();
  EXPECT_EQ(scale.initial(), 65536);
  EXPECT_EQ(scale.growth_factor(), 2);
  EXPECT_EQ(scale.backoff_factor(), 0.5);
  EXPECT_EQ(scale.growth_interval(), 2000u);
  EXPECT_EQ(scale.min(), 1);
  EXPECT_EQ(scale.max(), 16777216);
  for (const v1::Precision other : {v1::BF16, v1::FP32}) {
    spec.mutable_precision()->set_compute(other);
    EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU),
                ElementsAre(Field(&SpecProblem::description, HasSubstr(other == v1::BF16 ? "not with bf16" : "fp32"))));
  }
}

TEST(Resolve, NamesEachFieldOfAWrongLossScale) {
  v1::JobSpec spec = small_llama();
  spec.mutable_precision()->set_compute(v1::FP16);
  v1::LossScaleSpec& scale = *spec.mutable_precision()->mutable_loss_scale();
  scale.set_initial(8);
  scale.set_min(16);
  scale.set_max(4);
  scale.set_growth_factor(0.5);
  scale.set_backoff_factor(1);
  scale.set_growth_interval(100000000);
  EXPECT_THAT(fields(resolve(spec, v1::ResourceSpec::CPU)),
              ElementsAre("spec.precision.loss_scale.growth_factor", "spec.precision.loss_scale.backoff_factor",
                          "spec.precision.loss_scale.growth_interval", "spec.precision.loss_scale.max",
                          "spec.precision.loss_scale.initial"));
}

struct Published {
  const char* preset;
  uint64_t parameters;
};
class Parameters : public ::testing::TestWithParam<Published> {};
TEST_P(Parameters, EqualThePublishedCount) {
  v1::JobSpec spec = small_llama();
  spec.clear_model();
  spec.mutable_model()->set_preset(GetParam().preset);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  EXPECT_EQ(parameter_count(spec.model()), GetParam().parameters);
}
INSTANTIATE_TEST_SUITE_P(Presets, Parameters,
                         ::testing::Values(Published{"gpt2-124m", 124439808}, Published{"gpt2-1.5b", 1557611200},
                                           Published{"llama2-7b", 6738415616}, Published{"llama2-70b", 68976648192},
                                           Published{"llama3-8b", 8030261248}, Published{"llama3-70b", 70553706496},
                                           Published{"llama3.1-405b", 405853388800}));

TEST(Flops, FollowTheNamedConvention) {
  v1::JobSpec spec = small_llama();
  spec.clear_model();
  spec.mutable_model()->set_preset("llama3-8b");
  resolve(spec, v1::ResourceSpec::CPU);
  // 51.5 GFLOP a token at T = 8192 when GEMM parameters are counted and causal attention once.
  EXPECT_NEAR(flops_per_token(spec.model(), 8192) / 1e9, 51.5, 0.1);
}

TEST(Presets, AllResolve) {
  for (const std::string& name : preset_names()) {
    v1::JobSpec spec = small_llama();
    spec.clear_model();
    spec.mutable_model()->set_preset(name);
    EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty()) << name;
  }
}

}  // namespace
}  // namespace telar::plan
