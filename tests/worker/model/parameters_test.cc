#include "worker/model/parameters.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>
#include <set>

#include "worker/model/random.h"
#include "worker/model/transformer.h"
#include "worker/plan/presets.h"
#include "worker/plan/resolve.h"

namespace telar::model {
namespace {

v1::ModelSpec preset(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name("x");
  spec.mutable_model()->set_preset(name);
  spec.mutable_data()->add_train("/x");
  spec.mutable_batch()->set_global(1);
  spec.mutable_batch()->set_sequence_length(1024);
  spec.mutable_schedule()->set_steps(1);
  EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), ::testing::IsEmpty());
  return spec.model();
}

TEST(ParameterGroups, CountWhatTheFormulaCounts) {
  for (const std::string& name : plan::preset_names()) {
    const v1::ModelSpec model = preset(name);
    uint64_t count = 0;
    for (const auto& group : parameter_groups(model)) {
      for (const auto& part : group.parts) count += static_cast<uint64_t>(part.shape.elements());
    }
    EXPECT_EQ(count, plan::parameter_count(model)) << name;
  }
}

TEST(ParameterGroups, DecayMatricesOnlyAndPadOnlyTheVocabulary) {
  for (const char* name : {"gpt2-124m", "qwen2.5-0.5b"}) {
    for (const auto& group : parameter_groups(preset(name))) {
      EXPECT_EQ(group.decays, group.shape.rank() == 2) << group.name;
      int64_t rows = 0;
      for (const auto& part : group.parts) rows += part.shape[0];
      const bool vocabulary = group.name == "embed.weight" || group.name == "head.weight";
      EXPECT_TRUE(vocabulary ? rows <= group.shape[0] : rows == group.shape[0]) << group.name;
    }
  }
}

TEST(RandomStreams, DifferForEveryTensorOfALargeModel) {
  std::set<uint32_t> streams;
  size_t tensors = 0;
  for (const auto& group : parameter_groups(preset("llama3.1-405b"))) {
    for (const auto& part : group.parts) {
      streams.insert(tensor_stream(part.name));
      ++tensors;
    }
  }
  EXPECT_EQ(streams.size(), tensors);
}

TEST(RopeTable, HoldsCosinesThenSines) {
  v1::ModelSpec model = preset("llama3-8b");
  const std::vector<float> table = rope_table(model, 3);
  EXPECT_EQ(table[0], 1.0f);   // cos 0
  EXPECT_EQ(table[64], 0.0f);  // sin 0
  EXPECT_NEAR(table[2 * 128 + 0], std::cos(2.0), 1e-6);
  EXPECT_NEAR(table[2 * 128 + 64], std::sin(2.0), 1e-6);
  EXPECT_NEAR(table[2 * 128 + 32], std::cos(2.0 / std::sqrt(500000.0)), 1e-6);
}

TEST(RopeTable, ScalesLongWavelengthsOnly) {
  v1::ModelSpec plain = preset("llama3-8b"), scaled = preset("llama3.1-8b");
  const std::vector<float> a = rope_table(plain, 2), b = rope_table(scaled, 2);
  EXPECT_EQ(a[128], b[128]);  // The shortest wavelength stays.
  // The longest is stretched by the factor 8: sin(x / 8) is sin(x) / 8 for so small an x.
  EXPECT_NEAR(b[128 + 127] / a[128 + 127], 1.0 / 8, 1e-5);
}

}  // namespace
}  // namespace telar::model
