#include "worker/model/parameters.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
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

// What a rank holds where `tensor` ranks split layers and stages go round `pipeline` ranks.
struct Cut {
  v1::ModelSpec model;
  int tensor = 1, pipeline = 1, each = 1;

  Share share(int pp, int tp) const {
    const int stages = pipeline * each;
    Share made{tensor, tp, {}, model.tied_head() && pipeline > 1};
    const auto all = parallel::split_stages(static_cast<int>(model.layers()), stages);
    for (int s = pp; s < stages; s += pipeline) made.stages.push_back(all[static_cast<size_t>(s)]);
    return made;
  }
  template <typename Body>
  void for_each_part(Body body) const {
    for (int pp = 0; pp < pipeline; ++pp) {
      for (int tp = 0; tp < tensor; ++tp) {
        for (const auto& group : parameter_groups(model, share(pp, tp))) {
          for (const auto& part : group.parts) body(group, part, tp);
        }
      }
    }
  }
};

std::vector<Cut> cuts() {
  std::vector<Cut> all;
  for (const char* name : {"gpt2-124m", "llama3-8b", "qwen2.5-0.5b"}) {
    for (const bool tied : {false, true}) {
      v1::ModelSpec model = preset(name);
      model.set_layers(7);
      model.set_hidden(24);
      model.set_heads(8);
      model.set_kv_heads(name[0] == 'g' ? 8 : 2);
      model.set_head_dim(3);
      model.set_ffn(37);
      model.set_vocab(67);
      model.set_max_positions(5);
      model.set_tied_head(tied);
      for (const int tensor : {1, 2, 4, 8}) {
        for (const int pipeline : {1, 2, 3, 7}) all.push_back({model, tensor, pipeline, 1});
        all.push_back({model, tensor, 2, 3});
      }
    }
  }
  return all;
}

std::string cut_name(const Cut& cut) {
  return v1::Architecture_Name(cut.model.architecture()) + (cut.model.tied_head() ? " tied" : "") + " tp " +
         std::to_string(cut.tensor) + " pp " + std::to_string(cut.pipeline) + " x " + std::to_string(cut.each);
}

std::vector<int64_t> elements_of(const parallel::Parameter& part) {
  std::vector<int64_t> found;
  const int64_t columns = part.shape.rank() == 1 ? 1 : part.shape[1];
  for (const parallel::Box& box : parallel::boxes(part, 0, part.local().elements())) {
    const bool flat = box.offset.size() == 1;
    for (int64_t row = box.offset[0]; row < box.offset[0] + box.extent[0]; ++row) {
      for (int64_t c = 0; c < (flat ? 1 : box.extent[1]); ++c)
        found.push_back(row * columns + (flat ? 0 : box.offset[1] + c));
    }
  }
  return found;
}

TEST(ParameterShares, PrimariesHaveEveryElementOfEveryTensorOnce) {
  for (const Cut& cut : cuts()) {
    SCOPED_TRACE(cut_name(cut));
    std::map<std::string, std::vector<int>> times;
    for (const auto& group : parameter_groups(cut.model)) {
      for (const auto& part : group.parts) times[part.name].resize(static_cast<size_t>(part.shape.elements()), 0);
    }
    cut.for_each_part([&](const parallel::ParameterGroup&, const parallel::Parameter& part, int) {
      ASSERT_TRUE(times.contains(part.name)) << part.name;
      ASSERT_EQ(times[part.name].size(), static_cast<size_t>(part.shape.elements())) << part.name;
      if (!part.primary) return;
      for (const int64_t element : elements_of(part)) ++times[part.name][static_cast<size_t>(element)];
    });
    for (const auto& [name, counts] : times) {
      EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), static_cast<int64_t>(counts.size())) << name;
    }
  }
}

// A copy is of the same initial values, and its gradient is summed where ranks have summands of it.
TEST(ParameterShares, CopiesAreOfAPrimarysSlice) {
  for (const Cut& cut : cuts()) {
    SCOPED_TRACE(cut_name(cut));
    std::map<std::string, std::set<std::pair<int64_t, int64_t>>> primaries;
    const auto slice = [](const parallel::Parameter& part) { return std::pair(part.first, part.local()[part.axis]); };
    cut.for_each_part([&](const parallel::ParameterGroup&, const parallel::Parameter& part, int) {
      if (part.primary) primaries[part.name].insert(slice(part));
    });
    std::map<std::string, std::set<std::tuple<int, float, int>>> kinds;
    cut.for_each_part([&](const parallel::ParameterGroup& group, const parallel::Parameter& part, int tp) {
      EXPECT_TRUE(primaries[part.name].contains(slice(part))) << part.name << " of tensor rank " << tp;
      kinds[part.name].insert({static_cast<int>(part.init), part.stddev, static_cast<int>(part.partial)});
      const bool norm = part.name.find("norm") != std::string::npos;
      const bool copied_heads =
          cut.tensor > static_cast<int>(cut.model.kv_heads()) &&
          (part.name.find(".k.") != std::string::npos || part.name.find(".v.") != std::string::npos);
      EXPECT_EQ(part.partial, cut.tensor == 1 ? parallel::Partial::kNone
                              : norm          ? parallel::Partial::kTensor
                              : copied_heads  ? parallel::Partial::kKeyValue
                                              : parallel::Partial::kNone)
          << part.name;
      EXPECT_EQ(group.tied, cut.model.tied_head() && cut.pipeline > 1 && part.name == "embed.weight") << part.name;
    });
    for (const auto& [name, set] : kinds) EXPECT_EQ(set.size(), 1u) << name;
  }
}

// Tensor ranks of one stage have the same groups in the same order, of shapes that differ in slices only.
TEST(ParameterShares, TensorRanksHaveTheSameGroups) {
  for (const Cut& cut : cuts()) {
    SCOPED_TRACE(cut_name(cut));
    for (int pp = 0; pp < cut.pipeline; ++pp) {
      const auto first = parameter_groups(cut.model, cut.share(pp, 0));
      for (int tp = 1; tp < cut.tensor; ++tp) {
        const auto other = parameter_groups(cut.model, cut.share(pp, tp));
        ASSERT_EQ(other.size(), first.size());
        for (size_t g = 0; g < first.size(); ++g) {
          EXPECT_EQ(other[g].name, first[g].name);
          EXPECT_EQ(other[g].unit, first[g].unit);
          EXPECT_EQ(other[g].decays, first[g].decays);
          EXPECT_EQ(other[g].parts.size(), first[g].parts.size());
        }
      }
    }
  }
}

TEST(ParameterShares, PackedShapesHoldTheirParts) {
  for (const Cut& cut : cuts()) {
    SCOPED_TRACE(cut_name(cut));
    cut.for_each_part([&](const parallel::ParameterGroup& group, const parallel::Parameter& part, int) {
      int64_t elements = 0;
      for (const auto& one : group.parts) elements += one.local().elements();
      const bool padded = group.name == "embed.weight" || group.name == "head.weight";
      EXPECT_TRUE(padded ? elements <= group.shape.elements() : elements == group.shape.elements()) << group.name;
      EXPECT_EQ(group.shape.cols(), group.shape.rank() == 1 ? elements : part.local()[1]) << group.name;
    });
  }
}

TEST(Split, CutsInOrderAndAsEquallyAsCanBe) {
  for (int64_t n = 1; n < 50; ++n) {
    for (int count = 1; count <= n; ++count) {
      int64_t end = 0;
      for (int i = 0; i < count; ++i) {
        const parallel::Range range = split(n, count, i);
        EXPECT_EQ(range.first, end);
        EXPECT_TRUE(range.count == n / count || range.count == (n + count - 1) / count) << n << " by " << count;
        end = range.end();
      }
      EXPECT_EQ(end, n);
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
