#include "worker/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace telar::optim {
namespace {

v1::ScheduleSpec schedule(v1::ScheduleSpec::Kind kind, uint64_t steps, uint64_t warmup, double min_ratio,
                          uint64_t decay = 0) {
  v1::ScheduleSpec spec;
  spec.set_kind(kind);
  spec.set_steps(steps);
  spec.set_warmup_steps(warmup);
  spec.set_min_ratio(min_ratio);
  spec.set_decay_steps(decay);
  return spec;
}

TEST(LearningRate, WarmsUpLinearlyFromTheFirstStep) {
  const auto spec = schedule(v1::ScheduleSpec::COSINE, 100, 10, 0);
  EXPECT_DOUBLE_EQ(learning_rate(spec, 1.0, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(spec, 1.0, 10), 1.0);
}

TEST(LearningRate, CosineIsHalfWayInTheMiddleAndEndsAtTheFloor) {
  const auto spec = schedule(v1::ScheduleSpec::COSINE, 110, 10, 0.2);
  EXPECT_NEAR(learning_rate(spec, 2.0, 60), 0.4 + 1.6 / 2, 1e-12);
  EXPECT_NEAR(learning_rate(spec, 2.0, 110), 0.4, 1e-12);
}

TEST(LearningRate, LinearFalls) {
  const auto spec = schedule(v1::ScheduleSpec::LINEAR, 100, 0, 0.0);
  EXPECT_NEAR(learning_rate(spec, 1.0, 25), 0.75, 1e-12);
  EXPECT_NEAR(learning_rate(spec, 1.0, 100), 0.0, 1e-12);
}

TEST(LearningRate, WsdStaysThenFallsByTheRoot) {
  const auto spec = schedule(v1::ScheduleSpec::WSD, 100, 10, 0.0, 20);
  EXPECT_DOUBLE_EQ(learning_rate(spec, 1.0, 11), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(spec, 1.0, 80), 1.0);
  EXPECT_NEAR(learning_rate(spec, 1.0, 85), 1 - std::sqrt(0.25), 1e-12);
  EXPECT_NEAR(learning_rate(spec, 1.0, 100), 0.0, 1e-12);
}

TEST(LearningRate, ConstantIsConstantBehindTheWarmUp) {
  const auto spec = schedule(v1::ScheduleSpec::CONSTANT, 10, 2, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(spec, 3e-4, 1), 1.5e-4);
  for (uint64_t step = 2; step <= 10; ++step) EXPECT_DOUBLE_EQ(learning_rate(spec, 3e-4, step), 3e-4);
}

TEST(LearningRate, SurvivesOddCorners) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(v1::ScheduleSpec::COSINE, 1, 1, 0.1), 1.0, 1), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(v1::ScheduleSpec::COSINE, 5, 5, 0.1), 1.0, 5), 1.0);
  EXPECT_NEAR(learning_rate(schedule(v1::ScheduleSpec::LINEAR, 10, 0, 0.5), 1.0, 1000), 0.5, 1e-12);
}

}  // namespace
}  // namespace telar::optim
