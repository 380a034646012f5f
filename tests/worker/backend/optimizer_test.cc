#include "tests/reference/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

class OptimizerTest : public KernelTest {
 protected:
  Tensor step_scalars(const reference::AdamW& a, int step) {
    return tensor(DType::kF32, {kStepScalars},
                  {a.learning_rate, 1 - std::pow(a.beta1, step), 1 - std::pow(a.beta2, step), 0});
  }
};
TELAR_FLOAT_TYPES(OptimizerTest);

TEST_P(OptimizerTest, SumOfSquaresAccumulates) {
  for (int64_t n : {int64_t{1}, int64_t{17}, int64_t{129}, int64_t{70001}}) {
    Tensor x = tensor(GetParam(), {n}, random(n, 3.0)), sum = filled(DType::kF32, {1}, 11);
    ok(kernels().sum_squares(stream(), x.in(), sum.inout()));
    expect_close(sum.values(), {reference::sum_squares(x.values()) + 11}, {0, 2e-7}, "sum");
  }
}

// Shards of a flat bucket: any multiple of 64 elements. What belongs to others is left alone.
TEST_P(OptimizerTest, RangesAreUpdatedAsTheWholeIs) {
  const int64_t n = 20011;
  const Values start = random(n), gradient = random(n);
  const Tensor grad = tensor(DType::kF32, {n}, gradient), scale = filled(DType::kF32, {1}, 0.5);
  const Tensor step = step_scalars({0.9f, 0.95f, 1e-8f, 0.1f, 1e-2f}, 3);
  struct State {
    Tensor master, m, v, weight;
  };
  const auto state = [&] {
    return State{tensor(DType::kF32, {n}, start), filled(DType::kF32, {n}, 0.25), filled(DType::kF32, {n}, 0.5),
                 filled(GetParam(), {n}, -9)};
  };
  const auto update = [&](const State& s, int64_t first, int64_t count) {
    ok(kernels().adamw(stream(), {.weight_decay = 0.1f}, range(grad.in(), first, count), scale.in(), step.in(),
                       range(s.master.inout(), first, count), range(s.m.inout(), first, count),
                       range(s.v.inout(), first, count), range(s.weight.out(), first, count)));
  };
  const State whole = state(), parts = state(), middle = state();
  update(whole, 0, n);
  for (const auto& [first, count] :
       {std::array<int64_t, 2>{0, 64}, {64, 128}, {192, 0}, {192, 16448}, {16640, n - 16640}}) {
    update(parts, first, count);
  }
  EXPECT_EQ(parts.master.bytes(), whole.master.bytes());
  EXPECT_EQ(parts.m.bytes(), whole.m.bytes());
  EXPECT_EQ(parts.v.bytes(), whole.v.bytes());
  EXPECT_EQ(parts.weight.bytes(), whole.weight.bytes());
  update(middle, 64, 320);
  Values want = tensor(DType::kF32, {n}, start).values(), updated = whole.master.values(), want_weight(n, -9);
  std::copy_n(updated.begin() + 64, 320, want.begin() + 64);
  updated = whole.weight.values();
  std::copy_n(updated.begin() + 64, 320, want_weight.begin() + 64);
  EXPECT_EQ(middle.master.values(), want);
  EXPECT_EQ(middle.weight.values(), want_weight);

  const Tensor x = tensor(GetParam(), {n}, gradient);
  const Values values = x.values();
  for (const auto& [first, count] : {std::array<int64_t, 2>{64, 64}, {192, 0}, {192, 3}, {4160, 15000}}) {
    const Tensor sum = filled(DType::kF32, {1}, 11);
    ok(kernels().sum_squares(stream(), range(x.in(), first, count), sum.inout()));
    const Values squared(values.begin() + first, values.begin() + first + count);
    expect_close(sum.values(), {reference::sum_squares(squared) + 11}, {0, 2e-7}, "sum");
  }
}

TEST_F(OptimizerTest, ClipScale) {
  struct Case {
    float sum, max_norm, norm, scale;
  };
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Case& c : {Case{16, 2, 4, 0.5f}, Case{16, 8, 4, 1}, Case{16, 0, 4, 1}, Case{0, 1, 0, 1},
                        Case{infinity, 1, infinity, 0}, Case{infinity, 0, infinity, 0}, Case{nan, 1, nan, 0}}) {
    Tensor sum = filled(DType::kF32, {1}, c.sum), norm = filled(DType::kF32, {1}, -1);
    Tensor scale = filled(DType::kF32, {1}, -1);
    ok(kernels().clip_scale(stream(), sum.in(), In(), c.max_norm, norm.out(), scale.out()));
    EXPECT_NEAR(scale.values()[0], c.scale, 1e-6) << c.sum << ", " << c.max_norm;
    if (std::isnan(c.norm)) {
      EXPECT_TRUE(std::isnan(norm.values()[0]));
    } else {
      EXPECT_EQ(norm.values()[0], c.norm);
    }
  }
}

TEST_F(OptimizerTest, ClipScaleTakesTheLossScaleOut) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto scale_of = [&](float sum, float loss_scale, float max_norm, float want_norm) {
    Tensor squares = filled(DType::kF32, {1}, sum), factor = filled(DType::kF32, {1}, loss_scale);
    Tensor norm = filled(DType::kF32, {1}, -1), scale = filled(DType::kF32, {1}, -1);
    ok(kernels().clip_scale(stream(), squares.in(), factor.in(), max_norm, norm.out(), scale.out()));
    EXPECT_EQ(norm.values()[0], want_norm);
    return scale.values()[0];
  };
  EXPECT_EQ(scale_of(16 * 1024.0f * 1024, 1024, 0, 4), 1.0 / 1024);
  EXPECT_EQ(scale_of(16 * 1024.0f * 1024, 1024, 8, 4), 1.0 / 1024);
  EXPECT_NEAR(scale_of(16 * 1024.0f * 1024, 1024, 2, 4), 0.5 / 1024, 1e-9);
  EXPECT_EQ(scale_of(infinity, 1024, 2, infinity), 0);
}

// The state as the enumeration orders it: scale, applied, good, skipped, whether the last was.
TEST_F(OptimizerTest, AdvanceStepMovesTheScaleAndCountsWhatIsApplied) {
  const StepParams params{.beta1 = 0.9,
                          .beta2 = 0.95,
                          .growth_factor = 2,
                          .backoff_factor = 0.5,
                          .growth_interval = 3,
                          .min_loss_scale = 2,
                          .max_loss_scale = 16};
  Tensor state = tensor(DType::kF32, {kStepStates}, {8, 0, 0, 0, 0, 0, 0, 0});
  struct Case {
    double scale;
    Values want;
  };
  for (const Case& c :
       {Case{0.1, {8, 1, 1, 0, 0}}, Case{0.1, {8, 2, 2, 0, 0}}, Case{0, {4, 2, 0, 1, 1}}, Case{1e-30, {4, 3, 1, 1, 0}},
        Case{1, {4, 4, 2, 1, 0}}, Case{1, {8, 5, 0, 1, 0}}, Case{1, {8, 6, 1, 1, 0}}, Case{1, {8, 7, 2, 1, 0}},
        Case{1, {16, 8, 0, 1, 0}}, Case{1, {16, 9, 1, 1, 0}}, Case{1, {16, 10, 2, 1, 0}}, Case{1, {16, 11, 0, 1, 0}},
        Case{0, {8, 11, 0, 2, 1}}, Case{0, {4, 11, 0, 3, 1}}, Case{0, {2, 11, 0, 4, 1}}, Case{0, {2, 11, 0, 5, 1}}}) {
    Tensor scale = filled(DType::kF32, {1}, c.scale), step = tensor(DType::kF32, {kStepScalars}, {0.25, -1, -1, 7});
    ok(kernels().advance_step(stream(), params, scale.in(), state.inout(), step.inout()));
    const Values got = state.values(), scalars = step.values();
    EXPECT_EQ(Values(got.begin(), got.begin() + 5), c.want);
    EXPECT_EQ(scalars[kLearningRate], 0.25);
    EXPECT_NEAR(scalars[kBiasCorrection1] / (1 - std::pow(0.9, c.want[kAppliedSteps])), 1, 1e-7);
    EXPECT_NEAR(scalars[kBiasCorrection2] / (1 - std::pow(0.95, c.want[kAppliedSteps])), 1, 1e-7);
  }
}

TEST_F(OptimizerTest, WithoutScalingTheScaleStaysAndNothingIsDividedByZero) {
  Tensor state = tensor(DType::kF32, {kStepStates}, {1, 0, 0, 0, 0, 0, 0, 0});
  Tensor step = filled(DType::kF32, {kStepScalars}, 0);
  for (double scale : {0.0, 0.0, 1.0, 1.0}) {
    Tensor applied = filled(DType::kF32, {1}, scale);
    ok(kernels().advance_step(stream(), {}, applied.in(), state.inout(), step.inout()));
    EXPECT_EQ(state.values()[kLossScale], 1);
    EXPECT_GT(step.values()[kBiasCorrection1], 0);
    EXPECT_GT(step.values()[kBiasCorrection2], 0);
  }
  EXPECT_EQ(state.values()[kAppliedSteps], 2);
  EXPECT_EQ(state.values()[kSkippedSteps], 2);
}

TEST_P(OptimizerTest, AdamWOverTenSteps) {
  for (int64_t n : {int64_t{1}, int64_t{17}, int64_t{129}, int64_t{40001}}) {
    for (double decay : {0.0, 0.1}) {
      const reference::AdamW a{0.9f, 0.95f, 1e-8f, static_cast<float>(decay), 1e-2f};
      const AdamWParams params{0.9f, 0.95f, 1e-8f, static_cast<float>(decay)};
      Tensor master = tensor(DType::kF32, {n}, random(n)), m = filled(DType::kF32, {n}, 0);
      Tensor v = filled(DType::kF32, {n}, 0), weight = filled(GetParam(), {n}, 0);
      Values want = master.values(), want_m(n, 0.0), want_v(n, 0.0);
      for (int step = 1; step <= 10; ++step) {
        Tensor grad = tensor(DType::kF32, {n}, random(n)), scale = filled(DType::kF32, {1}, 1.0 / step);
        reference::adamw(a, step, grad.values(), scale.values()[0], want, want_m, want_v);
        ok(kernels().adamw(stream(), params, grad.in(), scale.in(), step_scalars(a, step).in(), master.inout(),
                           m.inout(), v.inout(), weight.out()));
      }
      expect_close(master.values(), want, {2e-6, 2e-6}, "master");
      expect_close(m.values(), want_m, {1e-6, 1e-5}, "exp_avg");
      expect_close(v.values(), want_v, {1e-6, 1e-5}, "exp_avg_sq");
      expect_close(weight.values(), master.values(), {6e-8, half_unit(GetParam())}, "weight");
    }
  }
}

// A decay too small for f32 to tell 1 - rate * decay from 1 acts all the same.
TEST_F(OptimizerTest, SmallDecayIsNotRoundedAway) {
  const reference::AdamW a{0.9f, 0.95f, 1e-8f, 0.01f, 1e-6f};
  Tensor master = filled(DType::kF32, {8}, 1e-3), m = filled(DType::kF32, {8}, 0);
  Tensor v = filled(DType::kF32, {8}, 0), scale = filled(DType::kF32, {1}, 1), grad = filled(DType::kF32, {8}, 1e-3);
  Values want = master.values(), want_m(8, 0.0), want_v(8, 0.0);
  for (int step = 1; step <= 100; ++step) {
    reference::adamw(a, step, grad.values(), 1, want, want_m, want_v);
    ok(kernels().adamw(stream(), {0.9f, 0.95f, 1e-8f, 0.01f}, grad.in(), scale.in(), step_scalars(a, step).in(),
                       master.inout(), m.inout(), v.inout(), Out()));
  }
  expect_close(master.values(), want, {0, 1e-5}, "master");
}

TEST_P(OptimizerTest, ScaleZeroChangesNothing) {
  const int64_t n = 129;
  Values grad_values = random(n);
  grad_values[7] = std::numeric_limits<double>::quiet_NaN();
  Tensor grad = tensor(DType::kF32, {n}, grad_values), scale = filled(DType::kF32, {1}, 0);
  Tensor master = tensor(DType::kF32, {n}, random(n)), m = tensor(DType::kF32, {n}, random(n));
  Tensor v = filled(DType::kF32, {n}, 0.5), weight = tensor(GetParam(), {n}, master.values());
  const auto before = std::vector{master.bytes(), m.bytes(), v.bytes(), weight.bytes()};
  ok(kernels().adamw(stream(), {0.9f, 0.95f, 1e-8f, 0.1f}, grad.in(), scale.in(),
                     step_scalars({0.9, 0.95, 1e-8, 0.1, 0.1}, 3).in(), master.inout(), m.inout(), v.inout(),
                     weight.out()));
  EXPECT_EQ((std::vector{master.bytes(), m.bytes(), v.bytes(), weight.bytes()}), before);
}

TEST_F(OptimizerTest, Refusals) {
  Tensor four = filled(DType::kF32, {4}, 0), five = filled(DType::kF32, {5}, 0), one = filled(DType::kF32, {1}, 0);
  Tensor half = filled(DType::kBF16, {4}, 0);
  const auto adamw = [&](In grad, In scale, InOut m, Out weight) {
    return kernels().adamw(stream(), {}, grad, scale, four.in(), four.inout(), m, four.inout(), weight);
  };
  expect_refused(adamw(half.in(), one.in(), four.inout(), Out()), {"adamw: grad", "bf16", "wanted f32"});
  expect_refused(adamw(four.in(), four.in(), four.inout(), Out()), {"adamw: scale", "[4]", "[1]"});
  expect_refused(adamw(four.in(), one.in(), five.inout(), Out()), {"adamw: exp_avg", "[5]", "[4]"});
  expect_refused(adamw(four.in(), one.in(), four.inout(), five.out()), {"adamw: weight", "[5]", "[4]"});
  expect_refused(kernels().sum_squares(stream(), four.in(), four.inout()), {"sum_squares: sum", "[4]"});
  expect_refused(kernels().clip_scale(stream(), one.in(), In(), -1, one.out(), one.out()),
                 {"clip_scale: max_norm", "-1"});
  expect_refused(kernels().clip_scale(stream(), one.in(), four.in(), 1, one.out(), one.out()),
                 {"clip_scale: loss_scale", "[4]", "[1]"});
  expect_refused(kernels().advance_step(stream(), {}, one.in(), four.inout(), four.inout()),
                 {"advance_step: state", "[4]", "[8]"});
  expect_refused(kernels().advance_step(stream(), {.backoff_factor = 0}, one.in(), four.inout(), four.inout()),
                 {"advance_step: params.backoff_factor", "got 0"});
}

}  // namespace
}  // namespace telar::backend::testing
