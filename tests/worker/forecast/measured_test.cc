// The model beside what was measured on H200s: docs/performance.md. One file of rates for all, nothing by model. With
// TELAR_FORECAST_TABLE set it prints the table of docs/plans.md.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tests/worker/forecast/specs.h"

namespace telar::forecast {
namespace {

using testing::Job;

constexpr auto kSelective = v1::MemorySpec::SELECTIVE;
constexpr auto kFull = v1::MemorySpec::FULL;

struct Measured {
  const char* name;
  Job job;
  double tokens_per_second;
};

const Measured kMeasured[] = {
    {"GPT-2 124M", {.micro = 256, .global = 512}, 613.8e3},
    {"GPT-2 350M", {.preset = "gpt2-350m", .micro = 128, .global = 512}, 225.2e3},
    {"GPT-2 774M", {.preset = "gpt2-774m", .micro = 64, .global = 512}, 105.9e3},
    {"GPT-2 1.5B", {.preset = "gpt2-1.5b", .micro = 32, .global = 256}, 54.5e3},
    {"Qwen2.5-0.5B", {.preset = "qwen2.5-0.5b", .micro = 64, .global = 256}, 163.6e3},
    {"Qwen2.5-1.5B", {.preset = "qwen2.5-1.5b", .micro = 32, .global = 256}, 59.5e3},
    {"Llama, 8 layers, 2 x 4", {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 4, .global = 8}, 40.9e3},
    {"Llama, 8 layers, 4 x 2", {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 8}, 40.5e3},
    {"the same, 2 x 2, recompute selective",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 4, .recompute = kSelective},
     39.5e3},
    {"recompute full",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 4, .recompute = kFull},
     34.1e3},
    {"GPT-2 124M, DP 2, ZeRO 1, 4 x 64", {.micro = 64, .global = 512, .data = 2, .zero = 1}, 1181e3},
    {"Llama, DP 2, ZeRO 1, 4 x 2",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 16, .data = 2, .zero = 1},
     80.1e3},
    {"Llama, DP 2, ZeRO 3, 4 x 2",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 16, .data = 2, .zero = 3},
     74.9e3},
    {"Llama, DP 2, ZeRO 1, 1 x 2",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 4, .data = 2, .zero = 1},
     74.6e3},
    {"Llama, DP 2, ZeRO 3, 1 x 2",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 4, .data = 2, .zero = 3},
     73.3e3},
    {"Llama, 32 layers, DP 2, ZeRO 3, 4 x 1",
     {.preset = "llama3-8b", .sequence = 4096, .micro = 1, .global = 8, .data = 2, .zero = 3},
     20.4e3},
    {"Llama, TP 2, 4 x 2",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 8, .tensor = 2},
     71.6e3},
    {"the same with whole collectives",
     {.preset = "llama3-8b",
      .layers = 8,
      .sequence = 4096,
      .micro = 2,
      .global = 8,
      .tensor = 2,
      .overlap_tensor = false},
     70.1e3},
    {"Llama, PP 2, 1F1B, 8 x 1",
     {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 1, .global = 8, .pipeline = 2, .schedule = "1f1b"},
     64.2e3},
    {"Llama, PP 2, ZB-H1, 8 x 1",
     {.preset = "llama3-8b",
      .layers = 8,
      .sequence = 4096,
      .micro = 1,
      .global = 8,
      .pipeline = 2,
      .schedule = "zb-h1"},
     66.2e3},
};

TEST(MeasuredTest, TokensPerSecondAreNearWhatH200sMade) {
  const bool print = std::getenv("TELAR_FORECAST_TABLE") != nullptr;
  double sum = 0;
  for (const Measured& one : kMeasured) {
    const v1::Forecast forecast = testing::forecast_of(one.job);
    const double off = forecast.tokens_per_second() / one.tokens_per_second - 1;
    EXPECT_LE(std::abs(off), 0.05) << one.name << ": " << forecast.tokens_per_second();
    sum += std::abs(off);
    if (!print) continue;
    const v1::RankForecast& rank = forecast.ranks(0);
    std::printf("| %s | %.1f k | %.1f k | %+.1f %% | %.1f ms | exposed %.1f, %.1f, %.1f ms |\n", one.name,
                one.tokens_per_second / 1e3, forecast.tokens_per_second() / 1e3, 100 * off,
                1e3 * forecast.step_seconds(), 1e3 * rank.exposed_gradients(), 1e3 * rank.exposed_tensor(),
                1e3 * rank.exposed_pipeline());
  }
  EXPECT_LE(sum / std::size(kMeasured), 0.02);
}

// What the same runs had planned on the device, in GiB and MiB as docs/performance.md has them.
TEST(MeasuredTest, MemoryIsWhatTheRunsPlanned) {
  const auto planned = [](const v1::Forecast& forecast) {
    double bytes = 0;
    for (const v1::MemoryForecast& memory : forecast.ranks(0).memory()) {
      // They had left io's few MiB out.
      if (memory.memory_class() != "evaluation" && memory.memory_class() != "io")
        bytes += static_cast<double>(memory.bytes());
    }
    return bytes / (1 << 30);
  };
  EXPECT_NEAR(planned(testing::forecast_of({.micro = 256, .global = 512})), 78.0, 0.05);
  EXPECT_NEAR(planned(testing::forecast_of({.preset = "gpt2-774m", .micro = 64, .global = 512})), 105.5, 0.05);
  const auto activations = [](v1::MemorySpec::Recompute recompute) {
    const v1::Forecast forecast = testing::forecast_of(
        {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 2, .global = 4, .recompute = recompute});
    for (const v1::MemoryForecast& memory : forecast.ranks(0).memory()) {
      if (memory.memory_class() == "activations") return static_cast<double>(memory.bytes()) / (1 << 20);
    }
    return 0.0;
  };
  EXPECT_NEAR(activations(v1::MemorySpec::NONE), 9225, 0.5);
  EXPECT_NEAR(activations(kSelective), 6632, 0.5);
  EXPECT_NEAR(activations(kFull), 2049, 0.5);
}

}  // namespace
}  // namespace telar::forecast
