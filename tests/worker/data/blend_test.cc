#include "worker/data/blend.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telar::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Blend, PlacesFollowFromCounts) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<double> weights(1 + random() % 9);
    for (double& weight : weights) weight = std::pow(10.0, -3.0 * static_cast<double>(random() % 1000) / 1000);
    const Blend blend = Blend::create(weights).value();
    std::vector<uint64_t> counts(weights.size());
    for (uint64_t sample = 0; sample < 3000; ++sample) {
      ASSERT_EQ(blend.counts(sample), counts) << sample;
      const Blend::Place place = blend.place(sample);
      ASSERT_LT(place.source, weights.size());
      ASSERT_EQ(place.index, counts[place.source]++) << sample;
    }
  }
}

// At every point, and so between any two.
TEST(Blend, SharesAreThoseOfTheWeights) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<double> weights(2 + random() % 15);
    double sum = 0;
    for (double& weight : weights) sum += weight = 0.001 + static_cast<double>(random() % 1000);
    const Blend blend = Blend::create(weights).value();
    const double bound = std::ceil(std::log2(weights.size())) / 2 + 0.5;
    for (int at = 0; at < 500; ++at) {
      // Doubles hold the expected counts of so many samples to far less than one.
      const uint64_t samples = at < 200 ? static_cast<uint64_t>(at) : random() % (uint64_t{1} << 40);
      const std::vector<uint64_t> counts = blend.counts(samples);
      uint64_t all = 0;
      for (size_t source = 0; source < weights.size(); ++source) {
        all += counts[source];
        EXPECT_NEAR(static_cast<double>(counts[source]), static_cast<double>(samples) * weights[source] / sum, bound);
        EXPECT_NEAR(blend.share(source), weights[source] / sum, 1e-12);
      }
      EXPECT_EQ(all, samples);
    }
  }
}

TEST(Blend, SmallWeightsGetTheirTurn) {
  const Blend blend = Blend::create(std::vector<double>{1, 1e-6}).value();
  EXPECT_EQ(blend.counts(100'000'100)[1], 100u);
  EXPECT_EQ(blend.counts(uint64_t{1} << 62)[0] + blend.counts(uint64_t{1} << 62)[1], uint64_t{1} << 62);
  const Blend one_sided = Blend::create(std::vector<double>{1, 1e-30}).value();
  EXPECT_EQ(one_sided.place(uint64_t{1} << 60).source, 0u);
}

// A change would change what a resumed run reads: docs/formats/samples.md.
TEST(Blend, OrderIsFixedForever) {
  const Blend blend = Blend::create(std::vector<double>{5, 3, 2}).value();
  std::vector<size_t> order;
  for (uint64_t sample = 0; sample < 10; ++sample) order.push_back(blend.place(sample).source);
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 2, 0, 1, 0, 2, 0, 1));
  EXPECT_THAT(blend.counts(1'000'000'007), ElementsAre(500'000'004, 300'000'002, 200'000'001));
}

TEST(Blend, RefusesByName) {
  EXPECT_FALSE(Blend::create({}).ok());
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(std::string(Blend::create(std::vector<double>{1, weight}).status().message()), HasSubstr("source 1"));
  }
}

}  // namespace
}  // namespace telar::data
