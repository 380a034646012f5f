// FP8 products that are large enough to be tuned, against the same in bf16: of numbers that both types have, with sums
// that are exact in whatever order.
#include <cstdlib>

#include "tests/worker/backend/cuda/library_rig.h"

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
