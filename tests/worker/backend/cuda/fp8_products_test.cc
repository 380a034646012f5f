// FP8 products that are large enough to be tuned, against the same in bf16: of numbers that both types have, with sums
// that are exact in whatever order.
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "tests/worker/backend/cuda/library_rig.h"
#include "worker/backend/fp8.h"

namespace telar::backend::testing {
namespace {

class CudaFp8Products : public LibraryTest {
 protected:
  Values whole(int64_t n) {
    Values values = uniform(n);
    for (double& value : values) value = std::nearbyint(2 * value);
    return values;
  }
  Tensor one() { return filled(DType::kF32, {1}, 1); }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaFp8Products, ::testing::Values(DType::kF8E4M3, DType::kF8E5M2));

constexpr int64_t kRows = 2048, kColumns = 1024, kTerms = 1024;  // 2^31 multiply-adds.

TEST_P(CudaFp8Products, TunedOnesAreExact) {
  for (const bool fast : {false, true}) {
    for (const bool with_bias : {false, true}) {
      const Values left = whole(kRows * kTerms), right = whole(kColumns * kTerms), added = whole(kColumns);
      Tensor a = tensor(GetParam(), {kRows, kTerms}, left), b = tensor(DType::kF8E4M3, {kColumns, kTerms}, right);
      Tensor x = tensor(DType::kBF16, {kRows, kTerms}, left), w = tensor(DType::kBF16, {kColumns, kTerms}, right);
      Tensor bias = tensor(DType::kBF16, {kColumns}, added);
      Tensor got = filled(DType::kBF16, {kRows, kColumns}, -9), want = filled(DType::kBF16, {kRows, kColumns}, -9);
      Tensor scale = one();
      for (int call = 0; call < 2; ++call) {  // The first one tunes.
        ok(ops().fp8_product(stream(), a.in(), scale.in(), b.in(), scale.in(), with_bias ? bias.in() : In(), fast,
                             got.out()));
        ok(ops().linear(stream(), x.in(), w.in(), with_bias ? bias.in() : In(), want.out()));
        EXPECT_EQ(got.bytes(), want.bytes()) << "fast " << fast << " bias " << with_bias;
      }
      rig().release();
    }
  }
}

TEST_P(CudaFp8Products, TunedWgradsAddToWhatIsThere) {
  Tensor a = tensor(GetParam(), {kRows, kTerms}, whole(kRows * kTerms));
  Tensor b = tensor(DType::kF8E4M3, {kColumns, kTerms}, whole(kColumns * kTerms));
  Tensor sum = filled(DType::kF32, {kRows, kColumns}, std::nan("")), scale = one();
  ok(ops().fp8_wgrad(stream(), a.in(), scale.in(), b.in(), scale.in(), false, sum.inout()));
  Values want = sum.values();
  ok(ops().fp8_wgrad(stream(), a.in(), scale.in(), b.in(), scale.in(), true, sum.inout()));
  for (double& value : want) value *= 2;
  EXPECT_EQ(sum.values(), want);
}

// In runs or squares of 128, whose scales are small powers of two, every sum fits into 24 bits: what is stored is
// rounded once. Some rows of it.
TEST_P(CudaFp8Products, TunedOnesInBlocksAreExact) {
  const auto scales = [&](const Shape& shape) {
    Values values = uniform(shape.elements());
    for (double& value : values) value = std::exp2(std::nearbyint(2 * value));
    return values;
  };
  for (const bool square : {false, true}) {
    for (const bool with_bias : {false, true}) {
      const Values left = whole(kRows * kTerms), right = whole(kColumns * kTerms), added = whole(kColumns);
      const Shape a_shape = fp8_inverse_shape(Fp8Scaled::kRuns, kRows, kTerms);
      const Shape b_shape = fp8_inverse_shape(square ? Fp8Scaled::kSquares : Fp8Scaled::kRuns, kColumns, kTerms);
      const Values a_scales = scales(a_shape), b_scales = scales(b_shape);
      Values wide_left = left, wide_right = right;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t k = 0; k < kTerms; ++k) wide_left[row * kTerms + k] *= a_scales[k / kFp8Block * kRows + row];
      }
      for (int64_t row = 0; row < kColumns; ++row) {
        for (int64_t k = 0; k < kTerms; ++k) {
          const int64_t block = k / kFp8Block;
          wide_right[row * kTerms + k] *=
              b_scales[square ? row / kFp8Block * b_shape[1] + block : block * kColumns + row];
        }
      }
      Tensor a = tensor(GetParam(), {kRows, kTerms}, left), b = tensor(DType::kF8E4M3, {kColumns, kTerms}, right);
      Tensor a_inverse = tensor(DType::kF32, a_shape, a_scales), b_inverse = tensor(DType::kF32, b_shape, b_scales);
      Tensor bias = tensor(DType::kBF16, {kColumns}, added), got = filled(DType::kBF16, {kRows, kColumns}, -9);
      for (int call = 0; call < 2; ++call) {  // The first one tunes.
        ok(ops().fp8_product(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(), with_bias ? bias.in() : In(),
                             false, got.out()));
        const Values found = got.values();
        int wrong = 0;
        for (int64_t row = 0; row < kRows; row += 61) {
          for (int64_t column = 0; column < kColumns; ++column) {
            const double exact = std::inner_product(&wide_left[row * kTerms], &wide_left[row * kTerms] + kTerms,
                                                    &wide_right[column * kTerms], with_bias ? added[column] : 0.0);
            const double unit = exact == 0 ? 1 : std::ldexp(1.0, std::ilogb(exact) - 7);  // Of a bf16 of its size.
            if (found[row * kColumns + column] != std::nearbyint(exact / unit) * unit) ++wrong;
          }
        }
        EXPECT_EQ(wrong, 0) << "squares " << square << " bias " << with_bias << " call " << call;
      }
      if (!square) {
        Tensor sum = filled(DType::kF32, {kRows, kColumns}, std::nan(""));
        for (const bool adds : {false, true}) {
          ok(ops().fp8_wgrad(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(), adds, sum.inout()));
        }
        Tensor once = filled(DType::kF32, {kRows, kColumns}, std::nan(""));
        ok(ops().fp8_wgrad(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(), false, once.inout()));
        Values twice = once.values();
        for (double& value : twice) value *= 2;
        EXPECT_EQ(sum.values(), twice);
      }
      rig().release();
    }
  }
}

TEST_P(CudaFp8Products, ScalesAreReadWhenTheProductRuns) {
  Tensor a = tensor(GetParam(), {32, 64}, whole(32 * 64)), b = tensor(DType::kF8E4M3, {16, 64}, whole(16 * 64));
  Tensor a_scale = one(), b_scale = one(), y = filled(DType::kF32, {32, 16}, 0);
  const auto multiply = [&] {
    return ops().fp8_product(stream(), a.in(), a_scale.in(), b.in(), b_scale.in(), In(), true, y.out());
  };
  ok(multiply());
  Values want = y.values();
  const float half = 0.5f, eight = 8.0f;
  rig().upload(&half, a_scale.out().data, sizeof(half));
  rig().upload(&eight, b_scale.out().data, sizeof(eight));
  run_captured(multiply);
  for (double& value : want) value *= 4;
  EXPECT_EQ(y.values(), want);
}

TEST_P(CudaFp8Products, WhatIsNotAlignedIsRefused) {
  Tensor b = filled(DType::kF8E4M3, {16, 64}, 1), scale = one(), y = filled(DType::kF32, {32, 16}, 0);
  Tensor a = filled(GetParam(), {32, 64}, 1);
  rig().set_aligned(false);
  Tensor odd = filled(GetParam(), {32, 64}, 1), odd_scale = one();
  rig().set_aligned(true);
  for (const auto& [left, inverse] : {std::pair(odd.in(), scale.in()), std::pair(a.in(), odd_scale.in())}) {
    const absl::Status status = ops().fp8_product(stream(), left, inverse, b.in(), scale.in(), In(), false, y.out());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_NE(std::string(status.message()).find("aligned to 16 bytes"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace telar::backend::testing
