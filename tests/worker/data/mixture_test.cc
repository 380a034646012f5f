#include "worker/data/mixture.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/fake_source.h"
#include "worker/data/batch_loader.h"

namespace telar::data {
namespace {

constexpr uint32_t kRowTokens = 8;

// Three sources of one token a window, told apart by their size; position p of source s is id 1000 s + p.
class MixtureTest : public ::testing::Test {
 protected:
  static std::vector<int32_t> numbered(int32_t first, size_t count) {
    std::vector<int32_t> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<int32_t>(i);
    return tokens;
  }
  Sampler sampler(const TokenSource& source, uint64_t seed) {
    return Sampler::shuffled(section_of(source, {0, source.size()}), {.sequence_length = kRowTokens}, seed).value();
  }
  const ListSource first_{numbered(0, 321)}, second_{numbered(1000, 201)}, third_{numbered(2000, 97)};
  const Mixture mixture_{Blend::create(std::vector<double>{5, 3, 2}).value(),
                         {sampler(first_, 1), sampler(second_, 2), sampler(third_, 3)}};
};

TEST_F(MixtureTest, CountsAndEpochsFollowFromTheNumberOfSamples) {
  std::vector<uint64_t> counts(3);
  for (uint64_t sample = 0; sample < 500; ++sample) {
    ASSERT_EQ(mixture_.consumed(sample), counts);
    std::vector<int32_t> inputs(kRowTokens), targets(kRowTokens);
    ASSERT_TRUE(mixture_.read(sample, {inputs, targets, {}}).ok());
    ++counts[static_cast<size_t>(inputs[0]) / 1000];
  }
  EXPECT_THAT(mixture_.consumed(500), ::testing::ElementsAre(250, 150, 100));
  const std::vector<double> epochs = mixture_.epochs(500);
  EXPECT_DOUBLE_EQ(epochs[0], 250.0 / static_cast<double>(mixture_.samplers()[0].rows()));
  EXPECT_DOUBLE_EQ(epochs[2], 100.0 / static_cast<double>(mixture_.samplers()[2].rows()));
}

// From sample 100 on there is another blend, and of each source every row still comes once an epoch.
TEST_F(MixtureTest, SourcesGoOnWhereAnotherBlendLeftThem) {
  Mixture other(Blend::create(std::vector<double>{1, 1, 4}).value(), {mixture_.samplers()});
  other.begin_at(100, mixture_.consumed(100));
  EXPECT_EQ(other.consumed(100), mixture_.consumed(100));
  EXPECT_THAT(other.consumed(160), ::testing::ElementsAre(60, 40, 60));
  std::vector<uint64_t> given(3);
  std::vector<int32_t> inputs(kRowTokens), wanted(kRowTokens), targets(kRowTokens);
  for (uint64_t sample = 0; sample < 400; ++sample) {
    ASSERT_TRUE((sample < 100 ? mixture_ : other).read(sample, {inputs, targets, {}}).ok());
    const auto source = static_cast<size_t>(inputs[0]) / 1000;
    ASSERT_TRUE(mixture_.samplers()[source].read(given[source]++, {wanted, targets, {}}).ok());
    ASSERT_EQ(inputs, wanted) << sample;
  }
  EXPECT_EQ(other.consumed(400), given);
}

// A run that changes its number of replicas again and again, within epochs, sees what one without changes sees; and of
// each source every row once an epoch.
TEST_F(MixtureTest, EverySampleOnceWhileReplicasComeAndGo) {
  constexpr uint32_t kGlobal = 12;
  std::vector<std::vector<int32_t>> seen;
  uint64_t consumed = 0;
  for (const uint32_t replicas : {1, 4, 2, 12, 3, 6, 1, 2}) {
    const uint32_t steps = 3 + replicas % 4;
    std::vector<std::unique_ptr<BatchLoader>> loaders;
    for (uint32_t dp = 0; dp < replicas; ++dp) {
      loaders.push_back(
          BatchLoader::start(
              mixture_,
              {.first_sample = consumed, .steps = steps, .global_batch = kGlobal, .dp_index = dp, .dp_count = replicas})
              .value());
    }
    for (uint32_t step = 0; step < steps; ++step) {
      for (const auto& loader : loaders) {
        const Batch batch = loader->next().value();
        for (size_t at = 0; at < batch.inputs.size(); at += kRowTokens) {
          seen.emplace_back(batch.inputs.begin() + static_cast<std::ptrdiff_t>(at),
                            batch.inputs.begin() + static_cast<std::ptrdiff_t>(at + kRowTokens));
        }
      }
    }
    consumed += uint64_t{steps} * kGlobal;
  }
  ASSERT_EQ(seen.size(), consumed);
  std::map<size_t, std::vector<int32_t>> by_source;
  for (uint64_t sample = 0; sample < consumed; ++sample) {
    std::vector<int32_t> inputs(kRowTokens), targets(kRowTokens);
    ASSERT_TRUE(mixture_.read(sample, {inputs, targets, {}}).ok());
    ASSERT_EQ(seen[sample], inputs);
    by_source[static_cast<size_t>(inputs[0]) / 1000].push_back(inputs[0]);
  }
  for (size_t source = 0; source < 3; ++source) {
    const uint64_t rows = mixture_.samplers()[source].rows();
    const std::vector<int32_t>& firsts = by_source[source];
    ASSERT_GT(firsts.size(), rows) << "more than an epoch of source " << source;
    for (size_t epoch = 0; epoch * rows < firsts.size(); ++epoch) {
      const auto begin = firsts.begin() + static_cast<std::ptrdiff_t>(epoch * rows);
      const size_t count = std::min<size_t>(rows, firsts.size() - epoch * rows);
      EXPECT_EQ(std::set<int32_t>(begin, begin + static_cast<std::ptrdiff_t>(count)).size(), count);
    }
  }
}

}  // namespace
}  // namespace telar::data
