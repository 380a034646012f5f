// The model beside what jobs in FP8 made on H200s: docs/performance.md, FP8. With TELAR_FORECAST_TABLE set it prints
// those rows of docs/plans.md.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tests/worker/forecast/specs.h"
#include "worker/forecast/precision.h"

namespace telar::forecast {
namespace {

using testing::Job;
using Recipe = v1::PrecisionSpec;

struct MeasuredFp8 {
  const char* name;
  Job job;
  Recipe::Recipe recipe;
  double tokens_per_second;
  double to_bf16;  // In the same run; 0: not measured.
};

const Job kLlama = {.preset = "llama3-8b", .layers = 8, .sequence = 4096, .micro = 4, .global = 8};
const Job kQwen = {.preset = "qwen2.5-1.5b", .micro = 32, .global = 128};

// Four micro-batches of two sequences a replica.
Job by(uint32_t data, uint32_t zero, uint32_t tensor = 1) {
  Job job = kLlama;
  job.micro = 2;
  job.global = 8 * data;
  job.data = data;
  job.zero = zero;
  job.tensor = tensor;
  return job;
}
Job in_pipeline() {
  Job job = by(1, 0);
  job.micro = 1;
  job.pipeline = 2;
  job.schedule = "1f1b";
  return job;
}
Job all_layers() {
  Job job = by(2, 3);
  job.layers = 0;
  job.micro = 1;
  job.global = 8;
  return job;
}

const MeasuredFp8 kMeasuredFp8[] = {
    {"Llama, 8 layers, 2 x 4", kLlama, Recipe::CURRENT, 56.1e3, 1.391},
    {"the same, delayed", kLlama, Recipe::DELAYED, 55.8e3, 1.381},
    {"the same, block", kLlama, Recipe::BLOCK, 51.8e3, 1.255},
    {"Qwen2.5-1.5B, 4 x 32", kQwen, Recipe::CURRENT, 79.5e3, 1.329},
    {"the same, delayed", kQwen, Recipe::DELAYED, 80.5e3, 1.346},
    {"the same, block", kQwen, Recipe::BLOCK, 70.0e3, 1.169},
    {"Llama, 8 layers, 4 x 2", by(1, 0), Recipe::CURRENT, 55.1e3, 1.355},
    {"data 2, ZeRO 1", by(2, 1), Recipe::CURRENT, 108.9e3, 0},
    {"data 2, ZeRO 3", by(2, 3), Recipe::CURRENT, 100.6e3, 1.334},
    {"tensor 2", by(1, 0, 2), Recipe::CURRENT, 94.4e3, 1.312},
    {"pipeline 2, 8 x 1", in_pipeline(), Recipe::CURRENT, 83.6e3, 0},
    {"all 32 layers, ZeRO 3, 4 x 1", all_layers(), Recipe::CURRENT, 28.6e3, 1.387},
};

v1::Forecast forecast_in(v1::Precision precision, const MeasuredFp8& one) {
  v1::JobSpec spec = testing::spec_of(one.job);  // Resolved: what follows from the precision is still to be.
  spec.clear_precision();
  spec.mutable_precision()->set_compute(precision);
  if (precision == v1::FP8) spec.mutable_precision()->set_recipe(one.recipe);
  for (const plan::SpecProblem& problem : plan::resolve(spec, v1::ResourceSpec::GPU)) {
    ADD_FAILURE() << problem.field << ": " << problem.description;
  }
  const auto result = forecast(spec, testing::cluster_of(1));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : v1::Forecast();
}

TEST(Fp8MeasuredTest, RatesAreNearWhatH200sMade) {
  const bool print = std::getenv("TELAR_FORECAST_TABLE") != nullptr;
  for (const MeasuredFp8& one : kMeasuredFp8) {
    const v1::Forecast found = forecast_in(v1::FP8, one);
    const double rate = found.tokens_per_second(), off = rate / one.tokens_per_second - 1;
    EXPECT_LE(std::abs(off), 0.05) << one.name << ": " << rate;
    const double ratio = rate / forecast_in(v1::BF16, one).tokens_per_second();
    if (one.to_bf16 > 0) {  // What precision.compute auto goes by.
      EXPECT_LE(std::abs(ratio / one.to_bf16 - 1), kFp8Margin) << one.name << ": " << ratio;
    }
    if (!print) continue;
    std::printf("| %s | %.1f k | %.1f k | %+.1f %% | %.1f ms | %s | %.2f |\n", one.name, one.tokens_per_second / 1e3,
                rate / 1e3, 100 * off, 1e3 * found.step_seconds(),
                one.to_bf16 > 0 ? std::to_string(one.to_bf16).substr(0, 5).c_str() : "", ratio);
  }
}

}  // namespace
}  // namespace telar::forecast
