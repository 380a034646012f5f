#include "worker/forecast/forecast.h"

#include <gmock/gmock.h>

#include <array>

#include "tests/worker/forecast/specs.h"
#include "tests/worker/plan/layouts.h"
#include "worker/engine/plan.h"
#include "worker/engine/step_buffers.h"
#include "worker/engine/trace.h"
#include "worker/forecast/remedies.h"
#include "worker/plan/programs.h"

namespace telar::forecast {
namespace {

using ::testing::HasSubstr;
using testing::Job;

// Of a rank's plan by class, as it would run.
std::map<std::string, uint64_t> planned(const plan::RunShape& shape) {
  const auto train = plan::record_train(shape);
  const auto made = engine::plan(train->program);
  std::map<std::string, uint64_t> bytes;
  for (int i = 0; i < engine::kMemoryClasses; ++i) {
    bytes[std::string(engine::name_of(static_cast<engine::MemoryClass>(i)))] =
        made->arena_bytes[static_cast<size_t>(i)];
  }
  bytes["io"] += engine::StepBuffers::device_bytes(train->from_host());
  const auto eval = plan::record_eval(shape);
  bytes["evaluation"] = engine::plan(eval->program)->total_bytes();
  return bytes;
}

// The ranks of a stage have the same bytes, but for the last tensor rank's share of what does not divide, and scalars.
TEST(ForecastTest, MemoryIsThatOfEveryRanksPlan) {
  for (const plan::testing::Layout& layout : plan::testing::generated_layouts(24, 7, 12)) {
    SCOPED_TRACE(plan::testing::to_text(layout));
    v1::ModelSpec model = plan::testing::small_model(layout.model);
    model.set_ffn(64);  // Divides by all degrees, as does the vocabulary.
    model.set_vocab(64);
    const v1::JobSpec spec = plan::testing::spec_of(layout, model);
    const auto result = forecast(spec, testing::cluster_of(4), {.may_shorten = false});
    ASSERT_TRUE(result.ok()) << result.status();
    for (const plan::RunShape& shape : plan::testing::shapes_of(spec, 0)) {
      SCOPED_TRACE(shape.mesh.rank());
      const std::map<std::string, uint64_t> real = planned(shape);
      for (const v1::MemoryForecast& memory : result->ranks(shape.mesh.pp).memory()) {
        EXPECT_EQ(memory.bytes(), real.at(memory.memory_class())) << memory.memory_class();
      }
    }
  }
}

TEST(ForecastTest, WhatDoesNotDivideIsTheLargestShare) {
  const v1::JobSpec spec = plan::testing::spec_of({.model = "llama", .tensor = 8});
  const auto result = forecast(spec, testing::cluster_of(1));
  ASSERT_TRUE(result.ok());
  for (const plan::RunShape& shape : plan::testing::shapes_of(spec, 0)) {
    for (const auto& [memory_class, bytes] : planned(shape)) {
      for (const v1::MemoryForecast& memory : result->ranks(0).memory()) {
        if (memory.memory_class() != memory_class) continue;
        EXPECT_GE(memory.bytes(), bytes) << memory_class << " of tensor rank " << shape.mesh.tp;
      }
    }
  }
}

TEST(ForecastTest, PhasesSumToTheStep) {
  for (const Job& job : {Job{.micro = 8, .global = 16}, Job{.micro = 4, .global = 32, .data = 2, .zero = 3},
                         Job{.micro = 4, .global = 32, .tensor = 2, .pipeline = 2},
                         Job{.micro = 2, .global = 32, .pipeline = 4, .schedule = "zb-v"}}) {
    const v1::Forecast forecast = testing::forecast_of(job);
    for (const v1::RankForecast& rank : forecast.ranks()) {
      const double all = rank.forward() + rank.backward() + rank.recompute() + rank.optimizer() + rank.other() +
                         rank.exposed_gradients() + rank.exposed_tensor() + rank.exposed_pipeline();
      EXPECT_NEAR(all, forecast.step_seconds(), 1e-9);
    }
  }
}

// Links that cost nothing leave the bubble of the schedule, which another simulator knows.
TEST(ForecastTest, WithoutTransfersTheBubbleIsTheSchedules) {
  v1::ClusterShape cluster = testing::cluster_of(1);
  v1::LinkRates& links = *cluster.mutable_rates()->mutable_domain();
  links.set_slowdown(0);
  links.set_send_slowdown(0);
  for (auto* points : {links.mutable_send(), links.mutable_all_reduce()}) {
    for (v1::LinkPoint& point : *points) point.set_bytes_per_second(1e18);
  }
  cluster.mutable_rates()->set_transfers_wait_for_kernels(false);
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    const Job job{.preset = "gpt2-774m", .layers = 32, .micro = 4, .global = 32, .pipeline = 4, .schedule = schedule};
    const auto result = forecast(testing::spec_of(job), cluster);
    ASSERT_TRUE(result.ok()) << result.status();
    // The optimizer, of which the schedule knows nothing, is part of a step.
    EXPECT_NEAR(result->bubble(), result->bubble_by_schedule(), 0.02) << schedule;
    EXPECT_GT(result->bubble(), 0.02) << schedule;
  }
}

TEST(ForecastTest, LongStepsAreExtrapolated) {
  for (const Job& job :
       {Job{.preset = "gpt2-350m", .micro = 4, .global = 96, .data = 2, .zero = 2},
        Job{.preset = "gpt2-350m", .micro = 2, .global = 64, .pipeline = 4, .schedule = "1f1b"},
        Job{.preset = "gpt2-350m", .micro = 2, .global = 64, .pipeline = 2, .schedule = "interleaved"}}) {
    SCOPED_TRACE(::testing::Message() << "data " << job.data << ", pipeline " << job.pipeline << " " << job.schedule);
    const v1::JobSpec spec = testing::spec_of(job);
    const auto whole = forecast(spec, testing::cluster_of(1), {.may_shorten = false});
    const auto shorter = forecast(spec, testing::cluster_of(1));
    ASSERT_TRUE(whole.ok() && shorter.ok());
    EXPECT_LT(shorter->recorded_micro_batches(), whole->recorded_micro_batches());
    EXPECT_NEAR(shorter->step_seconds() / whole->step_seconds(), 1, 0.015);
    for (int r = 0; r < whole->ranks_size(); ++r) {
      EXPECT_NEAR(static_cast<double>(shorter->ranks(r).total_bytes()),
                  static_cast<double>(whole->ranks(r).total_bytes()),
                  0.005 * static_cast<double>(whole->ranks(r).total_bytes()));
    }
  }
}

TEST(ForecastTest, RunsAreStepsTimesTheirTime) {
  const v1::Forecast forecast = testing::forecast_of({.micro = 64, .global = 512, .data = 8, .zero = 1});
  EXPECT_EQ(forecast.tokens(), 1000ull * 512 * 1024);
  EXPECT_NEAR(forecast.run_seconds(), 1000 * forecast.step_seconds(), 1e-6);
  EXPECT_NEAR(forecast.device_hours(), 8 * forecast.run_seconds() / 3600, 1e-9);
  EXPECT_NEAR(forecast.mfu(), forecast.tokens_per_second() * forecast.flops_per_token() / (8 * 989.4e12), 1e-9);
}

TEST(ForecastTest, TooFewDevicesAreSaid) {
  const auto result = forecast(testing::spec_of({.global = 16, .data = 16}), testing::cluster_of(1));
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("resources.devices: 16 devices are wanted, the cluster has 1 x 8 = 8"));
}

std::string advice_of(const v1::Forecast& forecast) {
  std::string text;
  for (const v1::Advice& advice : forecast.advice()) text += advice.field() + ": " + advice.text() + "\n";
  return text;
}

TEST(ForecastTest, WhatIsUnwiseIsSaid) {
  v1::ClusterShape narrow = testing::cluster_of(4);
  narrow.set_domain(4);
  const auto wide =
      forecast(testing::spec_of({.preset = "llama3-8b", .sequence = 4096, .global = 1, .tensor = 8}), narrow);
  EXPECT_THAT(advice_of(*wide), HasSubstr("parallel.tensor: 8 ranks do not fit in an NVLink domain of 4"));
  EXPECT_THAT(advice_of(testing::forecast_of({.sequence = 256, .global = 1})), HasSubstr("tiles of a product"));
  EXPECT_THAT(advice_of(testing::forecast_of({.preset = "llama3-8b", .sequence = 512, .global = 1, .tensor = 2})),
              HasSubstr("256 tokens a tensor rank"));
  EXPECT_THAT(advice_of(testing::forecast_of({.micro = 8, .global = 16, .pipeline = 4})), HasSubstr("in the pipeline"));
  EXPECT_THAT(advice_of(testing::forecast_of({.micro = 8, .global = 16, .data = 2})), HasSubstr("1 would save"));
}

TEST(ForecastTest, WhatDoesNotFitHasRemedies) {
  const v1::Forecast large =
      testing::forecast_of({.preset = "llama3-8b", .sequence = 4096, .micro = 2, .global = 16, .data = 8});
  EXPECT_FALSE(large.fits());
  EXPECT_THAT(advice_of(large), HasSubstr("more than the 138.4 GiB of h200"));
  const std::vector<v1::Advice> found = remedies(large, testing::cluster_of(1));
  ASSERT_GE(found.size(), 5u);
  bool sharding = false;
  for (const v1::Advice& advice : found) {
    sharding = sharding || (advice.field() == "parallel.zero_stage" && advice.level() == v1::Advice::NOTE);
    EXPECT_THAT(advice.text(), HasSubstr("saves"));
  }
  EXPECT_TRUE(sharding);
}

TEST(ForecastTest, SixteenThousandDevicesAreSoonPlanned) {
  const v1::Forecast forecast = testing::forecast_of({.preset = "llama3.1-405b",
                                                      .sequence = 8192,
                                                      .global = 2048,
                                                      .data = 128,
                                                      .tensor = 8,
                                                      .pipeline = 16,
                                                      .zero = 1,
                                                      .schedule = "1f1b"});
  EXPECT_EQ(forecast.ranks_size(), 16);
  EXPECT_TRUE(forecast.fits());
  EXPECT_NEAR(forecast.bubble_by_schedule(), 15.0 / 31, 0.02);
}

}  // namespace
}  // namespace telar::forecast
