#include "worker/data/batch_loader.h"

#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/fake_source.h"

namespace telar::data {
namespace {

using testing::HasSubstr;

constexpr uint32_t kLength = 8;

struct Step {
  std::vector<int32_t> inputs, targets;
  bool operator==(const Step&) const = default;
};

// The next `steps` batches of one loader, copied.
std::vector<Step> take(BatchLoader& loader, int steps) {
  std::vector<Step> taken;
  for (int step = 0; step < steps; ++step) {
    const Batch batch = loader.next().value();
    taken.push_back({{batch.inputs.begin(), batch.inputs.end()}, {batch.targets.begin(), batch.targets.end()}});
  }
  return taken;
}

TEST(BatchLoader, EveryLayoutCoversTheSameGlobalBatches) {
  const CountingSource source(5000);
  const auto sampler = Sampler::shuffled(section_of(source, {0, 5000}), {.sequence_length = kLength}, 9).value();
  constexpr int kSteps = 70;  // Crosses an epoch of 624 windows.
  std::vector<Step> expected(kSteps);
  for (uint64_t sample = 0; sample < 12 * kSteps; ++sample) {
    std::vector<int32_t> inputs(kLength), targets(kLength);
    ASSERT_TRUE(sampler.read(sample, {inputs, targets, {}}).ok());
    Step& step = expected[sample / 12];
    step.inputs.insert(step.inputs.end(), inputs.begin(), inputs.end());
    step.targets.insert(step.targets.end(), targets.begin(), targets.end());
  }
  for (const uint32_t dp_count : {1, 2, 3, 4, 6, 12}) {
    std::vector<Step> joined(kSteps);
    for (uint32_t dp = 0; dp < dp_count; ++dp) {
      auto loader = BatchLoader::start(sampler, {.global_batch = 12, .dp_index = dp, .dp_count = dp_count}).value();
      const auto part = take(*loader, kSteps);
      for (int step = 0; step < kSteps; ++step) {
        ASSERT_EQ(part[step].inputs.size(), 12 / dp_count * kLength);
        joined[step].inputs.insert(joined[step].inputs.end(), part[step].inputs.begin(), part[step].inputs.end());
        joined[step].targets.insert(joined[step].targets.end(), part[step].targets.begin(), part[step].targets.end());
      }
    }
    EXPECT_EQ(joined, expected) << "dp " << dp_count;
  }
}

TEST(BatchLoader, ResumesWithOneInteger) {
  const CountingSource source(3000);
  const auto sampler = Sampler::shuffled(section_of(source, {0, 3000}), {.sequence_length = kLength}, 5).value();
  const LoaderOptions options{.global_batch = 6, .dp_index = 1, .dp_count = 2};
  const auto straight = take(*BatchLoader::start(sampler, options).value(), 100);
  for (const int stop : {0, 1, 37, 99}) {
    LoaderOptions resumed = options;
    resumed.first_sample = 6 * stop;
    const auto rest = take(*BatchLoader::start(sampler, resumed).value(), 100 - stop);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), straight.begin() + stop)) << stop;
  }
}

TEST(BatchLoader, MicroBatchesAreRowsOfTheBatch) {
  const CountingSource source(3000);
  const auto sampler = Sampler::shuffled(section_of(source, {0, 3000}), {.sequence_length = kLength}, 5).value();
  auto loader = BatchLoader::start(sampler, {.global_batch = 6, .micro_batches = 3}).value();
  const Batch batch = loader->next().value();
  EXPECT_EQ(batch.first_sample, 0u);
  for (uint32_t m = 0; m < 3; ++m) {
    const auto rows = loader->micro(batch.inputs, m);
    ASSERT_EQ(rows.size(), 2 * kLength);
    EXPECT_EQ(rows.data(), batch.inputs.data() + m * 2 * kLength);
  }
}

TEST(BatchLoader, TheViewStaysWhileTheThreadReadsAhead) {
  GatedSource source(3000);
  const auto sampler = Sampler::in_order(section_of(source, {0, 3000}), {.sequence_length = kLength}).value();
  auto loader = BatchLoader::start(sampler, {.global_batch = 1, .buffers = 2}).value();
  source.allow(2);  // A sample is two reads.
  const Batch batch = loader->next().value();
  const std::vector<int32_t> before(batch.inputs.begin(), batch.inputs.end());
  source.allow(1000);
  // One batch is ahead and the other is ours: the thread must stop after four reads.
  source.await_begun(4);
  EXPECT_EQ(std::vector<int32_t>(batch.inputs.begin(), batch.inputs.end()), before);
  EXPECT_EQ(loader->next().value().inputs[0], static_cast<int32_t>(kLength));
  EXPECT_LE(source.begun(), 6);
}

TEST(BatchLoader, SaysHowLongItWaited) {
  // Nothing tells from outside that next() has begun to wait. So the gate opens later and later, until it surely had.
  double waited = 0;
  for (std::chrono::milliseconds late(1); waited == 0 && late < std::chrono::minutes(1); late *= 4) {
    GatedSource source(3000);
    const auto sampler = Sampler::in_order(section_of(source, {0, 3000}), {.sequence_length = kLength}).value();
    auto loader = BatchLoader::start(sampler, {.global_batch = 1}).value();
    source.await_begun(1);
    std::thread opener([&] {
      std::this_thread::sleep_for(late);
      source.allow(1000);
    });
    waited = loader->next().value().waited_seconds;
    opener.join();
  }
  EXPECT_GT(waited, 0);
}

TEST(BatchLoader, ErrorsComeInTheirTurnAndStay) {
  const CountingSource source(3000, /*fail_at=*/5 * kLength + 3);
  const auto sampler = Sampler::in_order(section_of(source, {0, 3000}), {.sequence_length = kLength}).value();
  auto loader = BatchLoader::start(sampler, {.global_batch = 2}).value();
  EXPECT_EQ(take(*loader, 2).size(), 2u);
  for (int call = 0; call < 3; ++call) {
    const auto status = loader->next().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(std::string(status.message()), "planted");
  }
}

TEST(BatchLoader, EndsAfterTheGivenSteps) {
  const CountingSource source(3000);
  const auto sampler =
      Sampler::in_order(section_of(source, {0, 6 * kLength + 1}), {.sequence_length = kLength}).value();
  auto loader = BatchLoader::start(sampler, {.steps = 3, .global_batch = 2}).value();
  EXPECT_EQ(take(*loader, 3).size(), 3u);
  EXPECT_EQ(loader->next().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(loader->next().status().message()), HasSubstr("all 3 batches"));
}

TEST(BatchLoader, EndsAtAnyMoment) {
  const CountingSource source(100000);
  const auto sampler = Sampler::shuffled(section_of(source, {0, 100000}), {.sequence_length = 64}, 5).value();
  for (int taken = 0; taken < 50; ++taken) {
    auto loader = BatchLoader::start(sampler, {.global_batch = 4, .buffers = 2}).value();
    take(*loader, taken % 5);
  }
}

TEST(BatchLoader, RefusesOptionsByName) {
  const CountingSource source(3000);
  const auto sampler = Sampler::in_order(section_of(source, {0, 3000}), {.sequence_length = kLength}).value();
  auto refused = [&](const LoaderOptions& options) {
    return std::string(BatchLoader::start(sampler, options).status().message());
  };
  EXPECT_THAT(refused({.global_batch = 0}), HasSubstr("global_batch 0"));
  EXPECT_THAT(refused({.global_batch = 5, .dp_count = 2}), HasSubstr("multiple of dp_count 2"));
  EXPECT_THAT(refused({.global_batch = 4, .dp_index = 2, .dp_count = 2}), HasSubstr("dp_index 2"));
  EXPECT_THAT(refused({.global_batch = 4, .micro_batches = 3}), HasSubstr("micro_batches 3"));
  EXPECT_THAT(refused({.global_batch = 4, .buffers = 1}), HasSubstr("buffers 1"));
}

}  // namespace
}  // namespace telar::data
