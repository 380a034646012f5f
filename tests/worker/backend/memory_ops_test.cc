#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

class MemoryOpsTest : public KernelTest {};
TELAR_FLOAT_TYPES(MemoryOpsTest);

TEST_P(MemoryOpsTest, Fill) {
  for (int64_t n : {int64_t{1}, int64_t{17}, int64_t{40000}}) {
    Tensor x = filled(GetParam(), {n}, 7);
    ok(kernels().fill(stream(), -2.5f, x.out()));
    EXPECT_EQ(x.values(), Values(n, -2.5));
  }
}

TEST_F(MemoryOpsTest, FillOfIntegersRounds) {
  Tensor x = filled(DType::kI32, {5}, 7);
  ok(kernels().fill(stream(), -1.6f, x.out()));
  EXPECT_EQ(x.values(), Values(5, -2));
}

TEST_P(MemoryOpsTest, Copy) {
  Tensor x = tensor(GetParam(), {3, 70001}, random(3 * 70001));
  Tensor y = filled(GetParam(), {3 * 70001}, 0);
  ok(kernels().copy(stream(), x.in(), y.out()));
  EXPECT_EQ(x.bytes(), y.bytes());
}

TEST_P(MemoryOpsTest, CastIsExactOneWayAndRoundsTheOther) {
  Values values = random(40001);
  values[3] = std::numeric_limits<double>::infinity();
  values[5] = std::numeric_limits<double>::quiet_NaN();
  values[7] = 1.00390625;  // Halfway between two bf16: to even, down.
  values[8] = 1.01171875;  // Halfway: to even, up.
  values[9] = -3.4e38;
  values[11] = 65519.9;        // The largest that f16 rounds down.
  values[12] = 65520;          // Infinity in f16.
  values[13] = 1.00048828125;  // Halfway between two f16: to even, down.
  values[14] = 1.00146484375;  // Halfway: to even, up.
  values[15] = 3.1e-8;         // A subnormal in f16, and below half of the least one:
  values[16] = -2.9e-8;
  values[17] = 6.0975e-5;  // Rounds up to the least normal f16.
  Tensor x = tensor(DType::kF32, {40001}, values);
  Tensor y = filled(GetParam(), {40001}, 0);
  ok(kernels().cast(stream(), x.in(), y.out()));
  const Tensor want = tensor(GetParam(), {40001}, values);  // Rounded on the host by the constructors of Bf16 and F16.
  const auto numbers = [](const Tensor& of) {               // Of a NaN the bits may be any.
    std::vector<uint8_t> bytes = of.bytes();
    const auto size = static_cast<std::ptrdiff_t>(bytes.size() / 40001);
    bytes.erase(bytes.begin() + 5 * size, bytes.begin() + 6 * size);
    return bytes;
  };
  EXPECT_EQ(numbers(y), numbers(want));
  EXPECT_TRUE(std::isnan(y.values()[5]));
  Tensor back = filled(DType::kF32, {40001}, 0);
  ok(kernels().cast(stream(), y.in(), back.out()));
  const Values got = back.values(), stored = y.values();
  for (size_t i = 0; i < got.size(); ++i) {
    if (i == 5) continue;
    ASSERT_EQ(got[i], stored[i]) << i;
  }
  EXPECT_TRUE(std::isnan(got[5]));
}

TEST_P(MemoryOpsTest, Add) {
  for (int64_t n : kOddSizes) {
    Tensor a = tensor(GetParam(), {n, 33}, random(n * 33)), b = tensor(GetParam(), {n, 33}, random(n * 33));
    Tensor y = filled(GetParam(), {n, 33}, 0);
    ok(kernels().add(stream(), a.in(), b.in(), y.out()));
    Values want = a.values();
    for (size_t i = 0; i < want.size(); ++i) want[i] += b.values()[i];
    expect_close(y.values(), want, rounded(GetParam()), "y");
  }
}

TEST_P(MemoryOpsTest, AddInPlace) {
  for (int64_t n : {int64_t{1}, int64_t{129}, int64_t{40001}}) {
    const Tensor a = tensor(GetParam(), {n}, random(n)), b = tensor(GetParam(), {n}, random(n));
    const Tensor y = filled(GetParam(), {n}, 0);
    ok(kernels().add(stream(), a.in(), b.in(), y.out()));
    const std::vector<uint8_t> want = y.bytes(), addend = b.bytes();
    ok(kernels().add(stream(), a.in(), b.in(), a.out()));
    EXPECT_EQ(a.bytes(), want);
    EXPECT_EQ(b.bytes(), addend);
  }
}

// Shards of a flat bucket: any multiple of 64 elements.
TEST_P(MemoryOpsTest, CastOfARange) {
  const int64_t n = 5003;
  const Tensor x = tensor(DType::kF32, {n}, random(n)), y = filled(GetParam(), {n}, 3),
               back = filled(DType::kF32, {n}, 5);
  const Values rounded_x = tensor(GetParam(), {n}, x.values()).values();
  Values want(n, 3), want_back(n, 5);
  for (const auto& [first, count] : {std::array<int64_t, 2>{64, 64}, {192, 1}, {320, 1000}, {4992, 11}}) {
    ok(kernels().cast(stream(), range(x.in(), first, count), range(y.out(), first, count)));
    ok(kernels().cast(stream(), range(y.in(), first, count), range(back.out(), first, count)));
    std::copy_n(rounded_x.begin() + first, count, want.begin() + first);
    std::copy_n(rounded_x.begin() + first, count, want_back.begin() + first);
    ok(kernels().cast(stream(), range(x.in(), 0, count), range(y.out(), first, count)));  // Between different places.
    std::copy_n(rounded_x.begin(), count, want.begin() + first);
  }
  EXPECT_EQ(y.values(), want);
  EXPECT_EQ(back.values(), want_back);
}

TEST_F(MemoryOpsTest, Refusals) {
  Tensor f = filled(DType::kF32, {4}, 0), b = filled(DType::kBF16, {4}, 0), i = filled(DType::kI32, {4}, 0);
  Tensor longer = filled(DType::kF32, {5}, 0);
  expect_refused(kernels().copy(stream(), f.in(), b.out()), {"copy: y", "got bf16", "wanted f32"});
  expect_refused(kernels().copy(stream(), f.in(), longer.out()), {"copy: y", "got f32 [5]", "[4]"});
  expect_refused(kernels().cast(stream(), i.in(), f.out()), {"cast: x", "got i32 [4]", "f32 or bf16"});
  expect_refused(kernels().add(stream(), f.in(), b.in(), f.out()), {"add: b", "got bf16", "f32 as a"});
  expect_refused(kernels().add(stream(), f.in(), In(), f.out()), {"add: b", "got nothing"});
  In unbound = f.in();
  unbound.data = nullptr;
  expect_refused(kernels().copy(stream(), unbound, f.out()), {"copy: x", "no memory"});
}

TEST_F(MemoryOpsTest, NothingToDoIsFine) {
  Tensor none = tensor(DType::kF32, {0}, {});
  Tensor sum = filled(DType::kF32, {1}, 3);
  ok(kernels().fill(stream(), 1, none.out()));
  ok(kernels().add(stream(), none.in(), none.in(), none.out()));
  ok(kernels().sum_squares(stream(), none.in(), sum.inout()));
  EXPECT_EQ(sum.values()[0], 3);
  Tensor half = tensor(DType::kBF16, {0}, {}), scalars = filled(DType::kF32, {kStepScalars}, 1);
  ok(kernels().copy(stream(), none.in(), none.out()));
  ok(kernels().cast(stream(), half.in(), none.out()));
  ok(kernels().random_normal(stream(), {.row = 4, .stride = 8}, 1, none.out()));
  ok(kernels().gelu(stream(), none.in(), none.out(), Out()));
  ok(kernels().adamw(stream(), {}, none.in(), sum.in(), scalars.in(), none.inout(), none.inout(), none.inout(),
                     half.out()));
}

}  // namespace
}  // namespace telar::backend::testing
