// The 8-bit floats' conversions, the branchless ones too, against their definition.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/reference/fp8.h"
#include "worker/backend/cpu/simd.h"
#include "worker/backend/fp8.h"

namespace telar::backend::cpu {
namespace {

using reference::Fp8Format;

template <typename T>
uint8_t stored(float value) {
  T to;
  store(value, to);
  return to.bits;
}

template <typename T>
class Fp8TypesTest : public ::testing::Test {
 protected:
  static const Fp8Format& format() { return DTypeOf<T>::value == DType::kF8E4M3 ? reference::kE4M3 : reference::kE5M2; }
  static void expect_code(float value) {
    const uint8_t want = reference::fp8_code(format(), value);
    ASSERT_EQ(T(value).bits, want) << value;
    ASSERT_EQ(stored<T>(value), want) << value;
  }
};
using Types = ::testing::Types<F8E4M3, F8E5M2>;
TYPED_TEST_SUITE(Fp8TypesTest, Types);

TYPED_TEST(Fp8TypesTest, EveryCodeHasItsValue) {
  for (int code = 0; code < 256; ++code) {
    TypeParam number;
    number.bits = static_cast<uint8_t>(code);
    const double want = (code < 128 ? 1 : -1) * reference::fp8_value(this->format(), code % 128);
    for (const float got : {static_cast<float>(number), load(number)}) {
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << code;
      } else {
        EXPECT_EQ(got, want) << code;
        EXPECT_EQ(std::signbit(got), code >= 128) << code;
      }
    }
  }
  EXPECT_EQ(reference::fp8_value(reference::kE4M3, 0x7e), 448);
  EXPECT_EQ(reference::fp8_value(reference::kE5M2, 0x7b), 57344);
}

// Every bf16 number, and floats beside every number of the type and every middle between two.
TYPED_TEST(Fp8TypesTest, RoundsToTheNearestCode) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) this->expect_code(std::bit_cast<float>(upper << 16));
  for (int code = 0; code < reference::fp8_most(this->format()); ++code) {
    const auto low = static_cast<float>(reference::fp8_value(this->format(), code));
    const auto high = static_cast<float>(reference::fp8_value(this->format(), code + 1));
    for (const float at : {low, (low + high) / 2, high}) {
      for (const float value : {std::nextafter(at, 0.0f), at, std::nextafter(at, 1e30f)}) {
        this->expect_code(value);
        this->expect_code(-value);
      }
    }
  }
}

TYPED_TEST(Fp8TypesTest, SaturatesAndKeepsNan) {
  const uint8_t most = static_cast<uint8_t>(reference::fp8_most(this->format()));
  for (const float value : {1e6f, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(TypeParam(value).bits, most);
    EXPECT_EQ(TypeParam(-value).bits, most | 0x80);
  }
  EXPECT_EQ(TypeParam(std::nanf("")).bits, 0x7f);
  EXPECT_EQ(TypeParam(-std::nanf("")).bits, 0x7f);
}

TYPED_TEST(Fp8TypesTest, TheScaleIsTheGreatestPowerOfTwoThatFits) {
  for (uint32_t upper = 0; upper < 0x7f80; ++upper) {
    for (const uint32_t lower : {0u, 1u}) {
      const float amax = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(fp8_scale(amax, DTypeOf<TypeParam>::value), reference::fp8_scale(this->format(), amax)) << amax;
    }
  }
  EXPECT_TRUE(std::isnan(fp8_scale(std::numeric_limits<float>::infinity(), DTypeOf<TypeParam>::value)));
}

}  // namespace
}  // namespace telar::backend::cpu
