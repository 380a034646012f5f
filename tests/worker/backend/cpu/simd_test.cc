#include "worker/backend/cpu/simd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "worker/backend/cpu/philox.h"

namespace telar::backend::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Units in the last place of the nearest float between `got` and the true value.
double ulps(float got, double want) {
  const float nearest = static_cast<float>(want);
  const float unit = std::max(std::nextafter(std::abs(nearest), kInfinity) - std::abs(nearest),
                              std::numeric_limits<float>::denorm_min());
  return std::abs(got - want) / unit;
}

TELAR_SIMD void exp_all(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = fast_exp(x[i]);
}

std::vector<float> exp_of(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  exp_all(x.data(), y.data(), static_cast<int64_t>(x.size()));
  return y;
}

TEST(FastExpTest, Within2UlpFromDenormalsToOverflow) {
  std::vector<float> x;
  for (float value = -104.0f; value < 88.72f; value += 1.0f / 4096) x.push_back(value);
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(0, 1e-3f);
  for (int i = 0; i < 100000; ++i) x.push_back(normal(engine));
  const std::vector<float> y = exp_of(x);
  double worst = 0;
  float at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulps(y[i], std::exp(static_cast<double>(x[i])));
    if (error > worst) {
      worst = error;
      at = x[i];
    }
  }
  EXPECT_LT(worst, 2.0) << "at " << at;
}

TEST(FastExpTest, Ends) {
  const std::vector<float> y =
      exp_of({0.0f, -0.0f, 88.73f, 1e10f, kInfinity, -105.0f, -1e10f, -kInfinity, std::nanf(""), -std::nanf("")});
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], kInfinity);
  EXPECT_EQ(y[3], kInfinity);
  EXPECT_EQ(y[4], kInfinity);
  EXPECT_EQ(y[5], 0.0f);
  EXPECT_EQ(y[6], 0.0f);
  EXPECT_EQ(y[7], 0.0f);
  EXPECT_TRUE(std::isnan(y[8]));
  EXPECT_TRUE(std::isnan(y[9]));
}

TEST(SigmoidTest, RelativeErrorIsSmallAtBothEnds) {
  for (float x = -80.0f; x < 80.0f; x += 1.0f / 512) {
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    ASSERT_NEAR(sigmoid(x) / want, 1.0, 4e-7) << x;
  }
}

TEST(OrderedTest, KeepsTheOrderOfFloats) {
  const float values[] = {-kInfinity, -3.5f, -1e-40f, 0.0f, 1e-40f, 2.0f, kInfinity, std::nanf("")};
  for (size_t i = 1; i < std::size(values); ++i) EXPECT_LT(to_ordered(values[i - 1]), to_ordered(values[i])) << i;
  for (float value : {-kInfinity, -3.5f, 0.0f, 2.0f}) EXPECT_EQ(from_ordered(to_ordered(value)), value);
}

TEST(StoreTest, RoundsAsBf16DoesForEveryUpperHalf) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      Bf16 got;
      store(value, got);
      ASSERT_EQ(got.bits, Bf16(value).bits) << std::hex << high << low;
    }
  }
}

// Known answers published with Random123, the authors' library.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace telar::backend::cpu
