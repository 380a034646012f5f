#include "worker/forecast/search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/worker/forecast/specs.h"

namespace telar::forecast {
namespace {

using ::testing::HasSubstr;
using testing::Job;

v1::JobSpec wanted(const Job& job, uint32_t devices) {
  v1::JobSpec spec = testing::unresolved(job);
  spec.mutable_resources()->set_devices(devices);
  spec.mutable_parallel()->set_auto_(true);
  return spec;
}

TEST(SearchTest, SmallModelsAreReplicated) {
  const auto found = search(wanted({.global = 512}, 8), testing::cluster_of(1));
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->best_size(), 10);
  ASSERT_EQ(found->reasons_size(), 10);
  const v1::JobSpec& best = found->best(0).spec();
  EXPECT_EQ(best.parallel().data(), 8u);
  EXPECT_EQ(best.parallel().tensor(), 1u);
  EXPECT_EQ(best.parallel().pipeline(), 1u);
  EXPECT_EQ(best.memory().recompute(), v1::MemorySpec::NONE);
  EXPECT_FALSE(best.parallel().auto_());
  EXPECT_THAT(found->reasons(0), HasSubstr("fastest of those that fit"));
  for (int i = 1; i < 10; ++i) {
    EXPECT_GE(found->best(i).step_seconds(), found->best(i - 1).step_seconds());
    EXPECT_TRUE(found->best(i).fits());
    EXPECT_THAT(found->reasons(i), HasSubstr("longer than the first"));
  }
  // All that was looked at is in one of the lists.
  uint64_t dropped = 0;
  for (const v1::DroppedLayouts& one : found->dropped()) dropped += one.count();
  EXPECT_EQ(dropped + 10, found->candidates());
}

TEST(SearchTest, LargeModelsAreSplit) {
  const auto found = search(wanted({.preset = "llama3-70b", .sequence = 8192, .global = 64}, 16),
                            testing::cluster_of(2), {.exact = 2});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_GT(found->best_size(), 0);
  const v1::ParallelSpec& best = found->best(0).spec().parallel();
  // Its weights alone are more than a device has, and its state is more than 16 hold twice.
  EXPECT_GT(best.tensor() * best.pipeline() * (best.zero_stage() == 3 ? 16 : 1), 1u);
  EXPECT_TRUE(best.zero_stage() > 0 || best.data() == 1);
  EXPECT_TRUE(found->best(0).fits());
  EXPECT_LE(best.tensor(), 8u);
}

TEST(SearchTest, WhatIsGivenStays) {
  v1::JobSpec spec = wanted({.preset = "gpt2-774m", .global = 64}, 8);
  spec.mutable_parallel()->set_tensor(2);
  spec.mutable_parallel()->set_pipeline(2);
  spec.mutable_batch()->set_micro(4);
  spec.mutable_memory()->set_recompute(v1::MemorySpec::FULL);
  const auto found = search(spec, testing::cluster_of(1), {.exact = 3});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_GT(found->best_size(), 0);
  for (const v1::Forecast& one : found->best()) {
    EXPECT_EQ(one.spec().parallel().tensor(), 2u);
    EXPECT_EQ(one.spec().parallel().pipeline(), 2u);
    EXPECT_EQ(one.spec().batch().micro(), 4u);
    EXPECT_EQ(one.spec().memory().recompute(), v1::MemorySpec::FULL);
  }
}

TEST(SearchTest, NothingFitsAndItSaysWhy) {
  const auto found =
      search(wanted({.preset = "llama3.1-405b", .sequence = 8192, .global = 8}, 8), testing::cluster_of(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->best_size(), 0);
  const auto memory = std::find_if(found->dropped().begin(), found->dropped().end(), [](const v1::DroppedLayouts& one) {
    return one.reason() == "more memory than a device has";
  });
  EXPECT_NE(memory, found->dropped().end());
}

TEST(SearchTest, EqualInputGivesEqualOutput) {
  const v1::JobSpec spec = wanted({.preset = "gpt2-350m", .global = 32}, 4);
  const auto a = search(spec, testing::cluster_of(1), {.best = 3, .exact = 4});
  const auto b = search(spec, testing::cluster_of(1), {.best = 3, .exact = 4});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->SerializeAsString(), b->SerializeAsString());
}

TEST(SearchTest, ASpecThatIsWrongAnywayIsRefused) {
  v1::JobSpec spec = wanted({.global = 8}, 8);
  spec.mutable_model()->set_heads(7);
  EXPECT_THAT(std::string(search(spec, testing::cluster_of(1)).status().message()), HasSubstr("spec.model.heads"));
}

// Half a minute of two cores: TELAR_FORECAST_LONG=1.
TEST(SearchTest, SixteenThousandDevicesAreSearched) {
  if (std::getenv("TELAR_FORECAST_LONG") == nullptr) GTEST_SKIP() << "long; TELAR_FORECAST_LONG=1 runs it";
  const auto found =
      search(wanted({.preset = "llama3.1-405b", .sequence = 8192, .global = 2048}, 16384), testing::cluster_of(2048));
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->best_size(), 10);
  EXPECT_GT(found->best(0).mfu(), 0.3);
  for (int i = 0; i < found->best_size(); ++i) {
    const v1::JobSpec& spec = found->best(i).spec();
    std::printf("%.1f ms, MFU %.1f %%, tensor %u pipeline %u %s x %u data %u zero %u micro %u recompute %d: %s\n",
                1e3 * found->best(i).step_seconds(), 100 * found->best(i).mfu(), spec.parallel().tensor(),
                spec.parallel().pipeline(), spec.parallel().schedule().c_str(), spec.parallel().virtual_stages(),
                spec.parallel().data(), spec.parallel().zero_stage(), spec.batch().micro(), spec.memory().recompute(),
                found->reasons(i).c_str());
  }
}

}  // namespace
}  // namespace telar::forecast
