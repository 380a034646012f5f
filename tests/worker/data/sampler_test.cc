#include "worker/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/fake_source.h"
#include "worker/data/permutation.h"

namespace telar::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Permutation, IsABijectionOfEverySmallSize) {
  std::mt19937_64 random(1);
  for (uint64_t size = 1; size <= 2000; ++size) {
    const Permutation permutation(size, random());
    std::vector<bool> hit(size);
    for (uint64_t index = 0; index < size; ++index) {
      const uint64_t to = permutation(index);
      ASSERT_LT(to, size);
      ASSERT_FALSE(hit[to]) << "size " << size << " hits " << to << " twice";
      hit[to] = true;
    }
  }
}

TEST(Permutation, HasNoCollisionsAtHugeSizes) {
  for (const uint64_t size : {uint64_t{1} << 40, (uint64_t{1} << 40) + 1, (uint64_t{1} << 61) - 3}) {
    const Permutation permutation(size, 7);
    std::set<uint64_t> seen;
    std::mt19937_64 random(2);
    std::set<uint64_t> asked = {0, size - 1};
    while (asked.size() < 20000) asked.insert(random() % size);
    uint64_t upper_half = 0;
    for (const uint64_t index : asked) {
      const uint64_t to = permutation(index);
      ASSERT_LT(to, size);
      ASSERT_TRUE(seen.insert(to).second);
      upper_half += to >= size / 2;
    }
    EXPECT_NEAR(static_cast<double>(upper_half), 10000, 400);  // Five and a half standard deviations.
  }
}

TEST(Permutation, SpreadsEachIndexEvenlyOverKeys) {
  constexpr uint64_t kSize = 10, kKeys = 20000;
  std::vector<std::vector<int>> count(kSize, std::vector<int>(kSize));
  for (uint64_t key = 0; key < kKeys; ++key) {
    const Permutation permutation(kSize, mix(key));
    for (uint64_t index = 0; index < kSize; ++index) ++count[index][permutation(index)];
  }
  for (const auto& row : count) {
    for (const int n : row) EXPECT_NEAR(n, 2000, 250);  // Standard deviation 42.
  }
}

TEST(HoldOut, TakesTheTailAndAtLeastOneWindow) {
  const auto tenth = hold_out_tail(1000, 0.1, 8).value();
  EXPECT_EQ(tenth.train, (TokenRange{0, 900}));
  EXPECT_EQ(tenth.eval, (TokenRange{900, 100}));
  const auto least = hold_out_tail(1000, 0.0001, 8).value();
  EXPECT_EQ(least.train, (TokenRange{0, 991}));
  EXPECT_EQ(least.eval, (TokenRange{991, 9}));
  EXPECT_TRUE(hold_out_tail(18, 0.02, 8).ok());
  EXPECT_THAT(std::string(hold_out_tail(17, 0.02, 8).status().message()),
              AllOf(HasSubstr("17 tokens"), HasSubstr("at least 18")));
  EXPECT_FALSE(hold_out_tail(0, 0.02, 8).ok());
  EXPECT_FALSE(hold_out_tail(1000, 0.999, 8).ok());  // Nothing left to train on.
  for (const double fraction : {0.0, 1.0, -0.5, std::nan("")}) EXPECT_FALSE(hold_out_tail(1000, fraction, 8).ok());
}

TEST(Sampler, TargetsAreTheNextTokens) {
  const CountingSource source(1000);
  const auto sampler = Sampler::shuffled(source, {100, 500}, 16, 3).value();
  std::vector<int32_t> inputs(16), targets(16);
  for (uint64_t sample = 0; sample < 100; ++sample) {
    ASSERT_TRUE(sampler.read(sample, inputs, targets).ok());
    EXPECT_EQ(inputs[0], static_cast<int32_t>(sampler.position(sample)));
    EXPECT_GE(inputs[0], 100);
    EXPECT_LT(targets[15], 600);
    for (int t = 0; t < 16; ++t) EXPECT_EQ(targets[t], inputs[t] + 1);
    for (int t = 1; t < 16; ++t) EXPECT_EQ(inputs[t], targets[t - 1]);
  }
}

TEST(Sampler, AnEpochTakesEachWindowOnce) {
  for (const uint64_t tokens : {9, 10, 15, 16, 17, 24, 25, 100, 1000, 1003}) {
    const CountingSource source(tokens);
    const auto sampler = Sampler::shuffled(source, {0, tokens}, 8, 11).value();
    ASSERT_GE(sampler.windows() + 2, (tokens - 1) / 8 + 1) << tokens;  // At most one window is left out.
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<uint64_t> positions;
      for (uint64_t at = 0; at < sampler.windows(); ++at) {
        positions.push_back(sampler.position(epoch * sampler.windows() + at));
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
    const auto sampler = Sampler::shuffled(source, {0, 10001}, 16, seed).value();
    std::vector<uint64_t> positions;
    for (uint64_t at = 0; at < 50; ++at) positions.push_back(sampler.position(epoch * sampler.windows() + at));
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

// The order of docs/formats/shards.md, worked out by a second program. A change changes the data that a resumed run
// sees.
TEST(Sampler, OrderIsFixedForever) {
  const CountingSource source(1000);
  const auto sampler = Sampler::shuffled(source, {0, 1000}, 10, 42).value();
  std::vector<uint64_t> positions;
  for (const uint64_t sample : {0, 1, 2, 98, 99, 1000000}) positions.push_back(sampler.position(sample));
  EXPECT_THAT(positions, ElementsAre(821, 111, 641, 721, 122, 618));
}

TEST(Sampler, HugeRangesNeedNoMemory) {
  const uint64_t tokens = (uint64_t{1} << 50) + 1024;
  const CountingSource source(tokens);
  const auto sampler = Sampler::shuffled(source, {0, tokens}, 1024, 1).value();
  EXPECT_EQ(sampler.windows(), uint64_t{1} << 40);
  std::vector<int32_t> inputs(1024), targets(1024);
  std::set<uint64_t> seen;
  for (uint64_t sample = 0; sample < 1000; ++sample) {
    EXPECT_TRUE(sampler.read(sample * 12345678901 % sampler.windows(), inputs, targets).ok());
    EXPECT_TRUE(seen.insert(sampler.position(sample)).second);
  }
}

TEST(Sampler, EvaluationIsInOrderAndEnds) {
  const CountingSource source(100);
  const auto sampler = Sampler::in_order(source, {50, 33}, 8).value();
  ASSERT_EQ(sampler.windows(), 4u);
  std::vector<int32_t> inputs(8), targets(8);
  for (uint64_t sample = 0; sample < 4; ++sample) {
    ASSERT_TRUE(sampler.read(sample, inputs, targets).ok());
    EXPECT_EQ(inputs[0], static_cast<int32_t>(50 + 8 * sample));
    EXPECT_EQ(targets[7], static_cast<int32_t>(58 + 8 * sample));
  }
  EXPECT_EQ(sampler.read(4, inputs, targets).code(), absl::StatusCode::kOutOfRange);
}

TEST(Sampler, RefusesWhatCannotWork) {
  const CountingSource source(100);
  EXPECT_THAT(std::string(Sampler::shuffled(source, {0, 16}, 16, 0).status().message()),
              AllOf(HasSubstr("16 tokens"), HasSubstr("at least 17")));
  EXPECT_TRUE(Sampler::shuffled(source, {0, 17}, 16, 0).ok());
  EXPECT_FALSE(Sampler::shuffled(source, {0, 17}, 0, 0).ok());
  EXPECT_FALSE(Sampler::in_order(source, {90, 11}, 4).ok());
  EXPECT_FALSE(Sampler::in_order(source, {UINT64_MAX, 11}, 4).ok());
  const auto sampler = Sampler::in_order(source, {0, 100}, 4).value();
  std::vector<int32_t> inputs(4), targets(3);
  EXPECT_EQ(sampler.read(0, inputs, targets).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace telar::data
