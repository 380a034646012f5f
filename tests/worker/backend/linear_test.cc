#include "tests/reference/linear.h"

#include <cmath>
#include <limits>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

struct Sizes {
  int64_t tokens, out, in;
};

class LinearTest : public KernelTest {
 protected:
  // Odd sizes, sizes over several tiles, and some at random.
  std::vector<Sizes> sizes() {
    std::vector<Sizes> all = {{1, 1, 1}, {3, 17, 65}, {65, 3, 129}, {129, 65, 1}, {17, 129, 3}, {300, 290, 70}};
    for (int i = 0; i < 6; ++i) all.push_back({pick(1, 90), pick(1, 90), pick(1, 200)});
    return all;
  }
  // A sum of `terms` products of standard normals, in f32: some 2^-24 per term at the sum's size.
  static Tolerance sums(int64_t terms) { return {2e-6 * std::sqrt(static_cast<double>(terms)), 1e-5}; }
  static Tolerance stored(DType dtype, int64_t terms) {
    const Tolerance sum = sums(terms);
    return dtype == DType::kF32 ? sum : Tolerance{sum.absolute, half_unit(dtype)};
  }
};
TELAR_FLOAT_TYPES(LinearTest);

TEST_P(LinearTest, Forward) {
  for (const auto [tokens, out, in] : sizes()) {
    for (bool with_bias : {false, true}) {
      for (DType result : {GetParam(), DType::kF32}) {
        Tensor x = tensor(GetParam(), {tokens, in}, random(tokens * in));
        Tensor w = tensor(GetParam(), {out, in}, random(out * in)), bias = tensor(GetParam(), {out}, random(out));
        Tensor y = filled(result, {tokens, out}, -9);
        ok(kernels().linear(stream(), x.in(), w.in(), with_bias ? bias.in() : In(), y.out()));
        expect_close(y.values(),
                     reference::linear(x.values(), w.values(), with_bias ? bias.values() : Values(), tokens, out, in),
                     stored(result, in), "y");
      }
    }
  }
}

// `after` may have seen `before` rounded or not, which moves it by half a unit of |before| times a slope of at
// most 1.13.
TEST_P(LinearTest, ForwardWithGelu) {
  std::vector<Sizes> all = sizes();
  all.push_back({40, 64, 96});
  for (const auto [tokens, out, in] : all) {
    for (bool with_bias : {false, true}) {
      Tensor x = tensor(GetParam(), {tokens, in}, random(tokens * in));
      Tensor w = tensor(GetParam(), {out, in}, random(out * in, 0.3)), bias = tensor(GetParam(), {out}, random(out));
      Tensor before = filled(GetParam(), {tokens, out}, NAN), after = filled(GetParam(), {tokens, out}, NAN);
      ok(kernels().linear_gelu(stream(), x.in(), w.in(), with_bias ? bias.in() : In(), before.out(), after.out()));
      const auto want =
          reference::linear_gelu(x.values(), w.values(), with_bias ? bias.values() : Values(), tokens, out, in);
      expect_close(before.values(), want.before, stored(GetParam(), in), "before");
      const double unit = GetParam() == DType::kF32 ? 0.0 : half_unit(GetParam());
      const Values got = after.values();
      for (size_t i = 0; i < got.size(); ++i) {
        const double slope = std::abs(reference::gelu_derivative(want.before[i]));
        // The slope is that of one end; its change over the step is of second order.
        const double moved = unit * std::abs(want.before[i]) * (slope + unit * std::abs(want.before[i]));
        const Tolerance allowed = stored(GetParam(), in);
        ASSERT_NEAR(got[i], want.after[i],
                    2 * allowed.absolute + 1e-5 + moved + allowed.relative * std::abs(want.after[i]))
            << "after, of " << want.before[i];
      }
    }
  }
}

TEST_P(LinearTest, Dgrad) {
  for (const auto [tokens, out, in] : sizes()) {
    Tensor dy = tensor(GetParam(), {tokens, out}, random(tokens * out));
    Tensor w = tensor(GetParam(), {out, in}, random(out * in));
    Tensor dx = filled(GetParam(), {tokens, in}, -9);
    ok(kernels().linear_dgrad(stream(), dy.in(), w.in(), dx.out()));
    expect_close(dx.values(), reference::linear_dgrad(dy.values(), w.values(), tokens, out, in),
                 stored(GetParam(), out), "dx");
  }
}

TEST_P(LinearTest, WgradAccumulates) {
  for (const auto [tokens, out, in] : sizes()) {
    for (bool with_bias : {false, true}) {
      Tensor dy = tensor(GetParam(), {tokens, out}, random(tokens * out));
      Tensor x = tensor(GetParam(), {tokens, in}, random(tokens * in));
      Tensor dw = tensor(DType::kF32, {out, in}, random(out * in)), dbias = tensor(DType::kF32, {out}, random(out));
      Values want = dw.values(), want_bias = with_bias ? dbias.values() : Values();
      for (int repeat = 0; repeat < 2; ++repeat) {
        reference::linear_wgrad(dy.values(), x.values(), tokens, out, in, want, want_bias);
        ok(kernels().linear_wgrad(stream(), dy.in(), x.in(), true, dw.inout(), with_bias ? dbias.inout() : InOut()));
      }
      expect_close(dw.values(), want, sums(2 * tokens), "dweight");
      if (with_bias) expect_close(dbias.values(), want_bias, sums(2 * tokens), "dbias");
    }
  }
}

TEST_P(LinearTest, WgradOverwritesWhateverWasThere) {
  for (const auto [tokens, out, in] : sizes()) {
    Tensor dy = tensor(GetParam(), {tokens, out}, random(tokens * out));
    Tensor x = tensor(GetParam(), {tokens, in}, random(tokens * in));
    Tensor dw = filled(DType::kF32, {out, in}, std::nan("")), dbias = tensor(DType::kF32, {out}, random(out));
    Values want(out * in, 0.0), want_bias = dbias.values();
    reference::linear_wgrad(dy.values(), x.values(), tokens, out, in, want, want_bias);
    ok(kernels().linear_wgrad(stream(), dy.in(), x.in(), false, dw.inout(), dbias.inout()));
    expect_close(dw.values(), want, sums(tokens), "dweight");
    expect_close(dbias.values(), want_bias, sums(tokens), "dbias");
  }
}

// Logits in f32 give gradients in f32, beside weights and activations of another type.
TEST_P(LinearTest, GradientsOfFloatLogits) {
  const int64_t tokens = 33, out = 70, in = 20;
  Tensor dy = tensor(DType::kF32, {tokens, out}, random(tokens * out));
  Tensor w = tensor(GetParam(), {out, in}, random(out * in)), x = tensor(GetParam(), {tokens, in}, random(tokens * in));
  Tensor dx = filled(GetParam(), {tokens, in}, 0), dw = filled(DType::kF32, {out, in}, 0);
  ok(kernels().linear_dgrad(stream(), dy.in(), w.in(), dx.out()));
  ok(kernels().linear_wgrad(stream(), dy.in(), x.in(), true, dw.inout(), InOut()));
  Values want(out * in, 0.0), no_bias;
  reference::linear_wgrad(dy.values(), x.values(), tokens, out, in, want, no_bias);
  expect_close(dx.values(), reference::linear_dgrad(dy.values(), w.values(), tokens, out, in), stored(GetParam(), out),
               "dx");
  expect_close(dw.values(), want, sums(tokens), "dweight");
}

// What f16 cannot hold becomes an infinity, so that an overflow shows.
TEST_F(LinearTest, OverflowOfF16IsInfinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  Tensor x = tensor(DType::kF16, {3, 2}, {60000, 5516, 60000, 5520, -60000, -6000});
  Tensor w = filled(DType::kF16, {1, 2}, 1), y = filled(DType::kF16, {3, 1}, 0);
  ok(kernels().linear(stream(), x.in(), w.in(), In(), y.out()));
  EXPECT_EQ(y.values(), (Values{65504, infinity, -infinity}));
}

TEST_F(LinearTest, Refusals) {
  Tensor x = filled(DType::kF32, {4, 6}, 0), w = filled(DType::kF32, {5, 6}, 0), y = filled(DType::kF32, {4, 5}, 0);
  Tensor wrong_w = filled(DType::kF32, {5, 7}, 0), wrong_bias = filled(DType::kF32, {4}, 0);
  Tensor ints = filled(DType::kI32, {4, 6}, 0), half = filled(DType::kBF16, {5, 6}, 0);
  expect_refused(kernels().linear(stream(), ints.in(), w.in(), In(), y.out()), {"linear: x", "got i32 [4, 6]"});
  expect_refused(kernels().linear(stream(), x.in(), wrong_w.in(), In(), y.out()),
                 {"linear: weight", "[5, 7]", "[any, 6]"});
  expect_refused(kernels().linear(stream(), x.in(), w.in(), wrong_bias.in(), y.out()), {"linear: bias", "[4]", "[5]"});
  expect_refused(kernels().linear(stream(), x.in(), w.in(), In(), x.out()), {"linear: y", "[4, 6]", "[4, 5]"});
  expect_refused(kernels().linear_gelu(stream(), x.in(), w.in(), In(), y.out(), x.out()),
                 {"linear_gelu: after", "[4, 6]", "[4, 5]"});
  expect_refused(kernels().linear_dgrad(stream(), y.in(), w.in(), y.out()), {"linear_dgrad: dx", "[4, 6]"});
  expect_refused(kernels().linear_wgrad(stream(), y.in(), x.in(), true, half.inout(), InOut()),
                 {"linear_wgrad: dweight", "got bf16", "wanted f32 [5, 6]"});
  Tensor f16 = filled(DType::kF16, {4, 6}, 0);
  expect_refused(kernels().linear(stream(), f16.in(), half.in(), In(), y.out()),
                 {"linear: weight", "got bf16", "f32 or f16 as x"});
  Tensor empty = tensor(DType::kF32, {0, 6}, {});
  expect_refused(kernels().linear(stream(), empty.in(), w.in(), In(), y.out()), {"linear: x", "[0, 6]"});
}

}  // namespace
}  // namespace telar::backend::testing
