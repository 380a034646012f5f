#include "worker/data/sampler.h"

#include <algorithm>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/fake_source.h"

namespace telar::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Of the first token, in the source.
uint64_t position(const Sampler& sampler, uint64_t sample) {
  return sampler.section().source_position(sampler.tokens_of(sample).first);
}

TEST(Sampler, TargetsAreTheNextTokens) {
  const CountingSource source(1000);
  const auto sampler = Sampler::shuffled(section_of(source, {100, 500}), {.sequence_length = 16}, 3).value();
  std::vector<int32_t> inputs(16), targets(16);
  for (uint64_t sample = 0; sample < 100; ++sample) {
    ASSERT_TRUE(sampler.read(sample, {inputs, targets, {}}).ok());
    EXPECT_EQ(inputs[0], static_cast<int32_t>(position(sampler, sample)));
    EXPECT_GE(inputs[0], 100);
    EXPECT_LT(targets[15], 600);
    for (int t = 0; t < 16; ++t) EXPECT_EQ(targets[t], inputs[t] + 1);
    for (int t = 1; t < 16; ++t) EXPECT_EQ(inputs[t], targets[t - 1]);
  }
}

TEST(Sampler, AnEpochTakesEachWindowOnce) {
  for (const uint64_t tokens : {9, 10, 15, 16, 17, 24, 25, 100, 1000, 1003}) {
    const CountingSource source(tokens);
    const auto sampler = Sampler::shuffled(section_of(source, {0, tokens}), {.sequence_length = 8}, 11).value();
    ASSERT_GE(sampler.rows() + 2, (tokens - 1) / 8 + 1) << tokens;  // At most one window is left out.
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<uint64_t> positions;
      for (uint64_t at = 0; at < sampler.rows(); ++at) {
        positions.push_back(position(sampler, epoch * sampler.rows() + at));
      }
      std::sort(positions.begin(), positions.end());
      EXPECT_LT(positions.front(), 8u);
      EXPECT_LE(positions.back() + 9, tokens);
      for (size_t at = 1; at < positions.size(); ++at) EXPECT_EQ(positions[at], positions[at - 1] + 8);
    }
  }
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  const CountingSource source(10001);  // As many windows as fit at offset 0 would leave no other offset.
  auto order = [&](uint64_t seed, uint64_t epoch) {
    const auto sampler = Sampler::shuffled(section_of(source, {0, 10001}), {.sequence_length = 16}, seed).value();
    std::vector<uint64_t> positions;
    for (uint64_t at = 0; at < 50; ++at) positions.push_back(position(sampler, epoch * sampler.rows() + at));
    return positions;
  };
  EXPECT_EQ(order(0, 0), order(0, 0));
  EXPECT_NE(order(0, 0), order(0, 1));
  EXPECT_NE(order(0, 0), order(1, 0));
  EXPECT_NE(order(0, 1), order(1, 0));
  std::set<uint64_t> offsets;
  for (uint64_t epoch = 0; epoch < 200; ++epoch) offsets.insert(order(0, epoch)[0] % 16);
  EXPECT_EQ(offsets.size(), 16u);
}

// The order of docs/formats/samples.md, worked out by a second program. A change changes the data that a resumed run
// sees.
TEST(Sampler, OrderIsFixedForever) {
  const CountingSource source(1000);
  const auto sampler = Sampler::shuffled(section_of(source, {0, 1000}), {.sequence_length = 10}, 42).value();
  std::vector<uint64_t> positions;
  for (const uint64_t sample : {0, 1, 2, 98, 99, 1000000}) positions.push_back(position(sampler, sample));
  EXPECT_THAT(positions, ElementsAre(821, 111, 641, 721, 122, 618));
}

TEST(Sampler, HugeRangesNeedNoMemory) {
  const uint64_t tokens = (uint64_t{1} << 50) + 1024;
  const CountingSource source(tokens);
  const auto sampler = Sampler::shuffled(section_of(source, {0, tokens}), {.sequence_length = 1024}, 1).value();
  EXPECT_EQ(sampler.rows(), uint64_t{1} << 40);
  std::vector<int32_t> inputs(1024), targets(1024);
  std::set<uint64_t> seen;
  for (uint64_t sample = 0; sample < 1000; ++sample) {
    EXPECT_TRUE(sampler.read(sample * 12345678901 % sampler.rows(), {inputs, targets, {}}).ok());
    EXPECT_TRUE(seen.insert(position(sampler, sample)).second);
  }
}

TEST(Sampler, EvaluationIsInOrderAndEnds) {
  const CountingSource source(100);
  const auto sampler = Sampler::in_order(section_of(source, {50, 33}), {.sequence_length = 8}).value();
  ASSERT_EQ(sampler.rows(), 4u);
  std::vector<int32_t> inputs(8), targets(8);
  for (uint64_t sample = 0; sample < 4; ++sample) {
    ASSERT_TRUE(sampler.read(sample, {inputs, targets, {}}).ok());
    EXPECT_EQ(inputs[0], static_cast<int32_t>(50 + 8 * sample));
    EXPECT_EQ(targets[7], static_cast<int32_t>(58 + 8 * sample));
  }
  EXPECT_EQ(sampler.read(4, {inputs, targets, {}}).code(), absl::StatusCode::kOutOfRange);
}

TEST(Sampler, RefusesWhatCannotWork) {
  const CountingSource source(100);
  EXPECT_THAT(
      std::string(Sampler::shuffled(section_of(source, {0, 16}), {.sequence_length = 16}, 0).status().message()),
      AllOf(HasSubstr("16 tokens"), HasSubstr("at least 17")));
  EXPECT_TRUE(Sampler::shuffled(section_of(source, {0, 17}), {.sequence_length = 16}, 0).ok());
  EXPECT_FALSE(Sampler::shuffled(section_of(source, {0, 17}), {.sequence_length = 0}, 0).ok());
  const auto sampler = Sampler::in_order(section_of(source, {0, 100}), {.sequence_length = 4}).value();
  std::vector<int32_t> inputs(4), targets(3);
  EXPECT_EQ(sampler.read(0, {inputs, targets, {}}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace telar::data
