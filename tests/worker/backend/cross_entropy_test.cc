#include "tests/reference/cross_entropy.h"

#include <cmath>
#include <limits>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

class CrossEntropyTest : public KernelTest {
 protected:
  std::vector<int32_t> targets(int64_t n, int64_t vocab) {
    std::vector<int32_t> all = integers(n, -1, static_cast<int32_t>(vocab - 1));
    all[0] = static_cast<int32_t>(vocab - 1);
    return all;
  }
};
TELAR_FLOAT_TYPES(CrossEntropyTest);

TEST_P(CrossEntropyTest, LossAndGradient) {
  for (int64_t vocab : {int64_t{1}, int64_t{3}, int64_t{17}, int64_t{129}, int64_t{5003}}) {
    const int64_t tokens = pick(1, 60), pitch = vocab + pick(0, 40);
    const std::vector<int32_t> target = targets(tokens, vocab);
    Tensor logits = tensor(GetParam(), {tokens, pitch}, random(tokens * pitch, 5.0));
    Tensor count = filled(DType::kF32, {1}, 2), loss = filled(DType::kF32, {1}, 0.25);
    Tensor loss_only = filled(DType::kF32, {1}, 0.25);
    ok(kernels().count_valid(stream(), ids(target).in(), count.inout()));
    double valid = 2;
    for (int32_t id : target) valid += id >= 0;
    EXPECT_EQ(count.values()[0], valid);
    const auto want = reference::cross_entropy(target, valid, vocab, pitch, logits.values());
    const std::vector<uint8_t> before = logits.bytes();
    ok(kernels().cross_entropy_loss(stream(), ids(target).in(), count.in(), vocab, logits.in(), loss_only.inout()));
    EXPECT_EQ(logits.bytes(), before);
    ok(kernels().cross_entropy(stream(), ids(target).in(), count.in(), In(), vocab, logits.inout(), loss.inout()));
    EXPECT_EQ(loss.bytes(), loss_only.bytes());
    expect_close(loss.values(), {want.loss + 0.25}, {1e-6, 1e-6}, "loss");
    expect_close(logits.values(), want.dlogits, {1e-7, rounded(GetParam()).relative * 2}, "dlogits");
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t v = vocab; v < pitch; ++v) ASSERT_EQ(logits.values()[t * pitch + v], 0) << t << ", " << v;
    }
  }
}

// The padding may hold anything, and large logits do not overflow.
TEST_P(CrossEntropyTest, PaddingAndLargeLogits) {
  const double nan = std::nan("");
  Tensor logits = tensor(GetParam(), {2, 4}, {300, 100, -500, nan, -1e4, -1e4, -1e4, nan});
  Tensor count = filled(DType::kF32, {1}, 2), loss = filled(DType::kF32, {1}, 0);
  ok(kernels().cross_entropy(stream(), ids({1, 0}).in(), count.in(), In(), 3, logits.inout(), loss.inout()));
  expect_close(loss.values(), {(200 + std::log(3.0)) / 2}, {0, 2e-3}, "loss");
  expect_close(logits.values(), {0.5, -0.5, 0, 0, -1.0 / 3, 1.0 / 6, 1.0 / 6, 0},
               {1e-6, rounded(GetParam()).relative * 2}, "dlogits");
}

TEST_P(CrossEntropyTest, TheLossScaleScalesTheGradientOnly) {
  const int64_t tokens = 9, vocab = 17;
  const std::vector<int32_t> target = targets(tokens, vocab);
  Tensor logits = tensor(GetParam(), {tokens, vocab}, random(tokens * vocab)), count = filled(DType::kF32, {1}, 7);
  Tensor loss = filled(DType::kF32, {1}, 0.5), scale = filled(DType::kF32, {1}, 4096);
  auto want = reference::cross_entropy(target, 7, vocab, vocab, logits.values());
  for (double& value : want.dlogits) value *= 4096;
  ok(kernels().cross_entropy(stream(), ids(target).in(), count.in(), scale.in(), vocab, logits.inout(), loss.inout()));
  expect_close(loss.values(), {want.loss + 0.5}, {1e-6, 1e-6}, "loss");
  expect_close(logits.values(), want.dlogits, {4e-4, rounded(GetParam()).relative * 2}, "dlogits");
}

// So that the step is seen to be one too far.
TEST_F(CrossEntropyTest, AScaleBeyondF16GivesInfinities) {
  Tensor logits = filled(DType::kF16, {1, 2}, 0), one = filled(DType::kF32, {1}, 1);
  Tensor loss = filled(DType::kF32, {1}, 0), scale = filled(DType::kF32, {1}, 131072);
  ok(kernels().cross_entropy(stream(), ids({1}).in(), one.in(), scale.in(), 2, logits.inout(), loss.inout()));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(logits.values(), (Values{infinity, -infinity}));
  expect_close(loss.values(), {std::log(2.0)}, {1e-6, 1e-6}, "loss");
}

TEST_P(CrossEntropyTest, NoTargetAtAll) {
  Tensor logits = tensor(GetParam(), {3, 5}, random(15));
  Tensor count = filled(DType::kF32, {1}, 0), loss = filled(DType::kF32, {1}, 1.5);
  ok(kernels().count_valid(stream(), ids({-1, -1, -1}).in(), count.inout()));
  ok(kernels().cross_entropy(stream(), ids({-1, -1, -1}).in(), count.in(), In(), 5, logits.inout(), loss.inout()));
  EXPECT_EQ(loss.values()[0], 1.5);
  EXPECT_EQ(logits.values(), Values(15, 0.0));
}

TEST_P(CrossEntropyTest, NanShows) {
  Tensor logits = tensor(GetParam(), {1, 40}, random(40));
  Values values = logits.values();
  for (double nan : {std::nan(""), -std::nan("")}) {
    values[20] = nan;
    Tensor bad = tensor(GetParam(), {1, 40}, values);
    Tensor count = filled(DType::kF32, {1}, 1), loss = filled(DType::kF32, {1}, 0);
    ok(kernels().cross_entropy(stream(), ids({3}).in(), count.in(), In(), 40, bad.inout(), loss.inout()));
    EXPECT_TRUE(std::isnan(loss.values()[0]));
  }
}

TEST_F(CrossEntropyTest, Refusals) {
  Tensor logits = filled(DType::kF32, {2, 5}, 0), one = filled(DType::kF32, {1}, 1), two = filled(DType::kF32, {2}, 1);
  if (rig().refuses_values()) {
    expect_refused(kernels().cross_entropy(stream(), ids({0, 4}).in(), one.in(), In(), 4, logits.inout(), one.inout()),
                   {"cross_entropy: targets", "got 4 at token 1", "vocab = 4"});
  }
  expect_refused(kernels().cross_entropy(stream(), ids({0, 1}).in(), one.in(), In(), 6, logits.inout(), one.inout()),
                 {"cross_entropy: vocab", "got 6", "5 columns"});
  expect_refused(kernels().cross_entropy_loss(stream(), ids({0, 1}).in(), two.in(), 5, logits.in(), one.inout()),
                 {"cross_entropy_loss: count", "[2]", "[1]"});
  expect_refused(kernels().cross_entropy_loss(stream(), ids({0}).in(), one.in(), 5, logits.in(), one.inout()),
                 {"cross_entropy_loss: logits", "[2, 5]", "[1, any]"});
  expect_refused(
      kernels().cross_entropy(stream(), ids({0, 1}).in(), one.in(), two.in(), 5, logits.inout(), one.inout()),
      {"cross_entropy: loss_scale", "[2]", "[1]"});
  expect_refused(kernels().count_valid(stream(), one.in(), one.inout()), {"count_valid: targets", "got f32"});
}

}  // namespace
}  // namespace telar::backend::testing
