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

TEST(StoreTest, RoundsAsF16DoesForEveryUpperHalf) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0xefffu, 0xf000u, 0xffffu}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      F16 got;
      store(value, got);
      ASSERT_EQ(got.bits, F16(value).bits) << std::hex << high << low;
    }
    F16 half;
    half.bits = static_cast<uint16_t>(high);
    ASSERT_EQ(std::bit_cast<uint32_t>(load(half)), std::bit_cast<uint32_t>(static_cast<float>(half))) << high;
  }
}

F16 f16_of(uint32_t bits) {
  F16 half;
  half.bits = static_cast<uint16_t>(bits);
  return half;
}

// By the definition: exponent field e, fraction f. e = 0: f 2^-24, else (1024 + f) 2^(e - 25).
double f16_value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

TEST(F16Test, EveryNumberHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00u) == 0x7c00u) continue;
    const float value = static_cast<float>(f16_of(bits));
    ASSERT_EQ(value, f16_value(bits)) << bits;
    ASSERT_EQ(F16(value).bits, bits);
  }
}

// Of the infinity's neighbour the next is taken to be 65536, as IEEE 754 has it.
TEST(F16Test, RoundsToTheNearerAndToEvenHalfway) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t low = 0; low < 0x7c00u; ++low) {
      const double from = f16_value(low), to = low == 0x7bffu ? 65536 : f16_value(low + 1);
      const float middle = static_cast<float>((from + to) / 2);  // Exact.
      const auto rounded = [&](float value) { return F16(sign != 0 ? -value : value).bits; };
      ASSERT_EQ(rounded(middle), sign | (low % 2 == 0 ? low : low + 1)) << low;
      ASSERT_EQ(rounded(std::nextafter(middle, 0.0f)), sign | low) << low;
      ASSERT_EQ(rounded(std::nextafter(middle, kInfinity)), sign | (low + 1)) << low;
    }
  }
}

TEST(F16Test, Ends) {
  EXPECT_EQ(F16(kInfinity).bits, 0x7c00u);
  EXPECT_EQ(F16(-kInfinity).bits, 0xfc00u);
  EXPECT_EQ(F16(std::numeric_limits<float>::max()).bits, 0x7c00u);
  EXPECT_EQ(F16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000u);
  EXPECT_EQ(static_cast<float>(f16_of(0x7c00u)), kInfinity);
  EXPECT_EQ(static_cast<float>(f16_of(0xfc00u)), -kInfinity);
  for (uint32_t raw : {0x7f800001u, 0x7fc00000u, 0xffffffffu}) {
    const F16 nan(std::bit_cast<float>(raw));
    EXPECT_GT(nan.bits & 0x7fffu, 0x7c00u) << raw;
    EXPECT_TRUE(std::isnan(static_cast<float>(nan))) << raw;
    EXPECT_EQ(nan.bits >> 15, raw >> 31);
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
