// Which position the sources of a run take at a resume.
#include "worker/train/blend_position.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "worker/plan/resolve.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Counts = std::map<std::string, uint64_t>;
using Weights = std::vector<std::pair<std::string, double>>;

class BlendPositionTest : public ::testing::Test {
 protected:
  BlendPositionTest() {
    char name[] = "/tmp/telar_blend_position_XXXXXX";
    root_ = mkdtemp(name);
    for (const char* source : {"a", "b", "c"}) {
      std::ofstream(root_ / source) << std::string(4000, source[0]);
    }
  }
  ~BlendPositionTest() override { fs::remove_all(root_); }

  v1::JobSpec spec(const Weights& weights) const {
    v1::JobSpec spec;
    spec.set_name("test");
    spec.mutable_model()->set_architecture(v1::GPT2);
    spec.mutable_model()->set_layers(1);
    spec.mutable_model()->set_hidden(16);
    spec.mutable_model()->set_heads(1);
    for (const auto& [name, weight] : weights) {
      v1::DataSource& source = *spec.mutable_data()->add_sources();
      source.set_name(name);
      source.set_weight(weight);
      source.add_train((root_ / name).string());
    }
    if (weights.empty()) spec.mutable_data()->add_train((root_ / "a").string());
    spec.mutable_batch()->set_global(4);
    spec.mutable_batch()->set_sequence_length(16);
    spec.mutable_schedule()->set_steps(100);
    spec.mutable_schedule()->set_kind(v1::ScheduleSpec::CONSTANT);
    spec.mutable_optimizer()->set_learning_rate(1e-3);
    for (const auto& problem : plan::resolve(spec, v1::ResourceSpec::CPU))
      ADD_FAILURE() << problem.field << " " << problem.description;
    return spec;
  }
  // Resumes there, and says where the run is `more` samples later.
  Position after(const Weights& weights, const Position& position, uint64_t more) {
    const v1::JobSpec job = spec(weights);
    Dataset set = open_dataset(job).value();
    BlendPosition blend;
    const auto lines = blend.resume(position, job, set);
    EXPECT_TRUE(lines.ok()) << lines.status();
    lines_ = *lines;
    Position now{.consumed_samples = position.consumed_samples + more};
    blend.note(set, now);
    return now;
  }

  fs::path root_;
  std::vector<std::string> lines_;
};

TEST_F(BlendPositionTest, NothingChangesWhileTheSpecStays) {
  Position at = after({{"a", 3}, {"b", 1}}, {}, 100);
  EXPECT_EQ(at.consumed_sources, (Counts{{"a", 75}, {"b", 25}}));
  at = after({{"a", 3}, {"b", 1}}, at, 100);
  EXPECT_EQ(at.consumed_sources, (Counts{{"a", 150}, {"b", 50}}));
  EXPECT_FALSE(at.blend_start);
  EXPECT_THAT(lines_, IsEmpty());
  // As manifests were written that did not tell of one source.
  at = after({}, {.consumed_samples = 40}, 4);
  EXPECT_THAT(at.consumed_sources, IsEmpty());
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(BlendPositionTest, SourcesComeAndGoAndComeBack) {
  const Position first = after({{"a", 3}, {"b", 1}}, {}, 100);
  const Position second = after({{"a", 1}, {"c", 1}}, first, 20);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("a has 50 % of the samples from here on, and goes on behind 75"),
                                  HasSubstr("c has 50 % of the samples from here on, is new"),
                                  HasSubstr("b is left out from here on, behind 25")));
  EXPECT_EQ(second.consumed_sources, (Counts{{"a", 85}, {"b", 25}, {"c", 10}}));
  EXPECT_EQ(second.blend_start, (checkpoint::BlendStart{100, {{"a", 75}, {"b", 25}}}));
  const Position third = after({{"a", 1}, {"c", 1}}, second, 20);
  EXPECT_THAT(lines_, IsEmpty()) << "the change was known";
  EXPECT_EQ(third.consumed_sources, (Counts{{"a", 95}, {"b", 25}, {"c", 20}}));
  EXPECT_EQ(third.blend_start, second.blend_start);
  const Position fourth = after({{"b", 1}}, third, 10);
  EXPECT_EQ(fourth.consumed_sources, (Counts{{"a", 95}, {"b", 35}, {"c", 20}}));
  EXPECT_EQ(fourth.blend_start, (checkpoint::BlendStart{140, third.consumed_sources}));
}

TEST_F(BlendPositionTest, ASourceThatHoldsSomethingElseIsNamed) {
  const Position first = after({{"a", 3}, {"b", 1}}, {}, 100);
  EXPECT_EQ(first.sources.at("b").sequence_length, 16u);
  std::ofstream(root_ / "b", std::ios::app) << std::string(160, 'b');
  const Position second = after({{"a", 3}, {"b", 1}}, first, 4);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("b holds "), HasSubstr("and held "), HasSubstr("another order"))));
  EXPECT_GT(second.sources.at("b").rows, first.sources.at("b").rows);
  EXPECT_EQ(second.sources.at("a"), first.sources.at("a"));
  EXPECT_FALSE(second.blend_start) << "the blend stays, and each source goes on behind what it gave";
  EXPECT_EQ(second.consumed_sources, (Counts{{"a", 78}, {"b", 26}}));
  after({{"a", 3}, {"b", 1}}, second, 4);
  EXPECT_THAT(lines_, IsEmpty()) << "the change was known";
  const Position plain = after({}, {}, 8);
  std::ofstream(root_ / "a", std::ios::app) << std::string(160, 'a');
  after({}, plain, 8);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("train holds ")));
}

TEST_F(BlendPositionTest, BetweenNamedSourcesAndNone) {
  const Position named = after({{"a", 1}}, {.consumed_samples = 50}, 10);
  EXPECT_EQ(named.consumed_sources, (Counts{{"a", 10}}));
  EXPECT_EQ(named.blend_start, (checkpoint::BlendStart{50, {}}));
  const Position plain = after({}, named, 6);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("data.train names begins at its first"), HasSubstr("a is left out")));
  EXPECT_EQ(plain.consumed_sources, (Counts{{"a", 10}}));
  after({}, plain, 6);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(BlendPositionTest, APositionThatContradictsItselfIsRefused) {
  const v1::JobSpec job = spec({{"a", 1}});
  Dataset set = open_dataset(job).value();
  const auto refused = BlendPosition().resume({.consumed_samples = 5, .consumed_sources = {{"a", 6}}}, job, set);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("consumed 5 samples, but its sources 6"));
}

}  // namespace
}  // namespace telar::train
