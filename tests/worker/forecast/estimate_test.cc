#include "worker/forecast/estimate.h"

#include "tests/worker/forecast/specs.h"

namespace telar::forecast {
namespace {

using testing::Job;

double most_bytes(const v1::Forecast& forecast) {
  uint64_t most = 0;
  for (const v1::RankForecast& rank : forecast.ranks()) most = std::max(most, rank.total_bytes());
  return static_cast<double>(most);
}

// An estimate only has to put layouts into the right order: what is near the top is forecast.
TEST(EstimateTest, IsNearTheForecast) {
  const Job jobs[] = {
      {.micro = 32, .global = 128},
      {.preset = "gpt2-1.5b", .micro = 8, .global = 128, .data = 4, .zero = 1},
      {.preset = "llama3-8b", .layers = 16, .sequence = 4096, .micro = 1, .global = 32, .data = 8, .zero = 3},
      {.preset = "llama3-8b", .layers = 16, .sequence = 4096, .micro = 2, .global = 16, .tensor = 4},
      {.preset = "llama3-8b", .sequence = 4096, .global = 16, .pipeline = 4, .schedule = "1f1b"},
      {.preset = "llama3-8b",
       .sequence = 4096,
       .global = 16,
       .pipeline = 4,
       .schedule = "interleaved",
       .virtual_stages = 2},
      {.preset = "llama3-8b", .sequence = 4096, .global = 16, .pipeline = 4, .schedule = "zb-h1"},
      {.preset = "llama3-8b", .sequence = 4096, .global = 16, .pipeline = 4, .schedule = "zb-v"},
      {.preset = "llama3-8b",
       .sequence = 4096,
       .global = 2,
       .pipeline = 4,
       .schedule = "interleaved",
       .virtual_stages = 4},
      {.preset = "llama3-8b",
       .sequence = 4096,
       .micro = 2,
       .global = 64,
       .data = 2,
       .tensor = 2,
       .pipeline = 2,
       .zero = 2,
       .schedule = "1f1b",
       .recompute = v1::MemorySpec::FULL},
  };
  for (const Job& job : jobs) {
    SCOPED_TRACE(job.preset + " " + job.schedule + " dp " + std::to_string(job.data) + " tp " +
                 std::to_string(job.tensor));
    const v1::ClusterShape cluster = testing::cluster_of(1);
    const v1::JobSpec spec = testing::spec_of(job);
    const auto estimate = Estimator(cluster).estimate(spec);
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    const v1::Forecast exact = testing::forecast_of(job);
    EXPECT_NEAR(estimate->seconds / exact.step_seconds(), 1, 0.1);
    EXPECT_NEAR(estimate->bytes / most_bytes(exact), 1, 0.15);
  }
}

}  // namespace
}  // namespace telar::forecast
