// What CUDA devices do beyond the contract that backends share: values that no host has checked, and random numbers
// that are those of the CPU.
#include <cmath>

#include "tests/worker/backend/kernel_test.h"
#include "worker/backend/cpu/cpu.h"

namespace telar::backend::testing {
namespace {

class CudaDeviceValuesTest : public KernelTest {
 protected:
  Values on_cpu(RandomKey key, int64_t n) {
    std::vector<float> values(n);
    View view;
    view.buffer = 0;
    view.shape = Shape{n};
    view.data = reinterpret_cast<std::byte*>(values.data());
    EXPECT_EQ(cpu::create_kernels()->random_normal(stream(), key, 0.02f, Out(view)), absl::OkStatus());
    return Values(values.begin(), values.end());
  }
};

TEST_F(CudaDeviceValuesTest, RandomNumbersAreThoseOfTheCpu) {
  for (uint64_t first : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 34) - 1}) {
    const RandomKey key{.seed = 0x123456789abcdef0, .purpose = 3, .tensor = 17, .first = first};
    Tensor x = filled(DType::kF32, {50001}, 0);
    ok(kernels().random_normal(stream(), key, 0.02f, x.out()));
    const Values got = x.values(), want = on_cpu(key, 50001);
    int different = 0;
    for (size_t i = 0; i < got.size(); ++i) different += got[i] != want[i];
    EXPECT_LE(different, 5);  // Doubles beside a tie between floats.
    expect_close(got, want, {1e-12, 1.3e-7}, "x");
  }
}

TEST_F(CudaDeviceValuesTest, RandomNumbersOfABoxAreThoseOfTheCpu) {
  for (uint64_t width : {uint64_t{1}, uint64_t{6}, uint64_t{1000}}) {
    const RandomKey key{
        .seed = 9, .purpose = 3, .tensor = 17, .first = 5, .row = width, .stride = 1003, .offset = width / 2};
    Tensor x = filled(DType::kF32, {7001}, 0);
    ok(kernels().random_normal(stream(), key, 0.02f, x.out()));
    expect_close(x.values(), on_cpu(key, 7001), {1e-12, 1.3e-7}, "x");
  }
}

TEST_F(CudaDeviceValuesTest, IdsOutsideTheVocabularyAreRowsOfZeros) {
  Tensor table = filled(DType::kF32, {3, 8}, 2), y = filled(DType::kF32, {4, 8}, -9);
  ok(kernels().embedding(stream(), ids({0, -1, 3, 2}).in(), {0, 3, 3}, table.in(), In(), In(), 4, y.out()));
  Values want(32, 2.0);
  std::fill(want.begin() + 8, want.begin() + 24, 0.0);
  EXPECT_EQ(y.values(), want);
  Tensor dy = filled(DType::kF32, {4, 8}, 1), dtable = filled(DType::kF32, {3, 8}, 0);
  ok(kernels().embedding_backward(stream(), ids({0, -1, 3, 2}).in(), {0, 3, 3}, dy.in(), In(), 4, dtable.inout(),
                                  InOut()));
  Values want_dtable(24, 1.0);
  std::fill(want_dtable.begin() + 8, want_dtable.begin() + 16, 0.0);
  EXPECT_EQ(dtable.values(), want_dtable);
}

TEST_F(CudaDeviceValuesTest, TargetsOutsideTheVocabularyAreNone) {
  Tensor logits = tensor(DType::kF32, {2, 5}, random(10)), count = filled(DType::kF32, {1}, 1);
  Tensor loss = filled(DType::kF32, {1}, 1.5);
  ok(kernels().cross_entropy(stream(), ids({4, 1000000}).in(), count.in(), In(), 4, logits.inout(), loss.inout()));
  EXPECT_EQ(loss.values()[0], 1.5);
  EXPECT_EQ(logits.values(), Values(10, 0.0));
}

TEST_F(CudaDeviceValuesTest, TargetsOutsideTheVocabularyOfSlicesAreNone) {
  Tensor logits = tensor(DType::kF32, {2, 5}, random(10)), count = filled(DType::kF32, {1}, 1);
  Tensor loss = filled(DType::kF32, {1}, 1.5), parts = filled(DType::kF32, {3, 2}, -9);
  const VocabSlice slice{0, 4, 8};
  ok(kernels().softmax_parts(stream(), ids({8, 1000000}).in(), slice, logits.in(), parts.out()));
  EXPECT_EQ(parts.values()[4], 0);
  EXPECT_EQ(parts.values()[5], 0);
  ok(kernels().cross_entropy_parts(stream(), ids({8, 1000000}).in(), count.in(), In(), slice, parts.in(),
                                   logits.inout(), loss.inout()));
  EXPECT_EQ(loss.values()[0], 1.5);
  EXPECT_EQ(logits.values(), Values(10, 0.0));
}

TEST_F(CudaDeviceValuesTest, RowsTooWideForTheNormsAreNamed) {
  Tensor x = filled(DType::kF32, {1, 16400}, 0), w = filled(DType::kF32, {16400}, 0),
         rstd = filled(DType::kF32, {1}, 0);
  const absl::Status status =
      kernels().rms_norm(stream(), x.in(), In(), w.in(), 1e-5f, Out(), x.out(), rstd.out(), Out());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(std::string(status.message()).find("16400 columns"), std::string::npos) << status;
}

}  // namespace
}  // namespace telar::backend::testing
