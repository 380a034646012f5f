#include "tests/reference/layer_norm.h"
#include "tests/reference/rms_norm.h"
#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

constexpr float kEpsilon = 1e-5f;

class NormTest : public KernelTest {
 protected:
  Tolerance stored() const { return rounded(GetParam(), 10); }
  Tensor activations(int64_t rows, int64_t width) {
    // Off centre, so that a variance by difference of squares would show.
    Values values = random(rows * width, 0.5);
    for (double& value : values) value += 3;
    return tensor(GetParam(), {rows, width}, values);
  }
};
TELAR_FLOAT_TYPES(NormTest);

TEST_P(NormTest, LayerNorm) {
  for (int64_t width : {2, 3, 17, 65, 129, 768, 2051}) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool adds = variant & 1, with_bias = variant & 2;
      const int64_t rows = pick(1, 70);
      Tensor residual = activations(rows, width), delta = activations(rows, width);
      Tensor w = tensor(GetParam(), {width}, random(width)), bias = tensor(GetParam(), {width}, random(width));
      Tensor sum = filled(GetParam(), {rows, width}, 0), y = filled(GetParam(), {rows, width}, 0);
      Tensor mean = filled(DType::kF32, {rows}, 0), rstd = filled(DType::kF32, {rows}, 0);
      ok(kernels().layer_norm(stream(), residual.in(), adds ? delta.in() : In(), w.in(), with_bias ? bias.in() : In(),
                              kEpsilon, adds ? sum.out() : Out(), y.out(), mean.out(), rstd.out(), Out()));
      Values x = residual.values();
      if (adds) {
        const Values d = delta.values();
        for (size_t i = 0; i < x.size(); ++i) x[i] += d[i];
        expect_close(sum.values(), x, stored(), "sum");
        x = sum.values();  // What is normed is the stored sum.
      }
      const auto want = reference::layer_norm(x, w.values(), with_bias ? bias.values() : Values(), kEpsilon, width);
      expect_close(mean.values(), want.mean, {1e-5, 1e-5}, "mean");
      expect_close(rstd.values(), want.rstd, {1e-5, 2e-5}, "rstd");
      expect_close(y.values(), want.y, {2e-4, stored().relative * 2}, "y");
    }
  }
}

TEST_P(NormTest, LayerNormBackwardAccumulates) {
  for (int64_t width : {int64_t{3}, int64_t{65}, int64_t{129}, int64_t{768}}) {
    for (bool with_bias : {false, true}) {
      const int64_t rows = pick(1, 200);
      Tensor x = activations(rows, width), dy = tensor(GetParam(), {rows, width}, random(rows * width));
      Tensor w = tensor(GetParam(), {width}, random(width));
      Tensor dx = tensor(GetParam(), {rows, width}, random(rows * width));
      Tensor dw = tensor(DType::kF32, {width}, random(width)), dbias = tensor(DType::kF32, {width}, random(width));
      const auto forward = reference::layer_norm(x.values(), w.values(), {}, kEpsilon, width);
      Tensor mean = tensor(DType::kF32, {rows}, forward.mean), rstd = tensor(DType::kF32, {rows}, forward.rstd);
      Values want_dx = dx.values(), want_dw = dw.values(), want_dbias = with_bias ? dbias.values() : Values();
      reference::layer_norm_backward(dy.values(), x.values(), w.values(), kEpsilon, width, want_dx, want_dw,
                                     want_dbias);
      ok(kernels().layer_norm_backward(stream(), dy.in(), x.in(), w.in(), mean.in(), rstd.in(), dx.inout(), dw.inout(),
                                       with_bias ? dbias.inout() : InOut()));
      expect_close(dx.values(), want_dx, {1e-4, stored().relative * 4}, "dx");
      expect_close(dw.values(), want_dw, {2e-4, 1e-4}, "dweight");
      if (with_bias) expect_close(dbias.values(), want_dbias, {2e-4, 1e-5}, "dbias");
    }
  }
}

// Rows of a warp, and of a block.
constexpr int64_t kRmsWidths[] = {1, 3, 17, 65, 129, 1536, 2051};

TEST_P(NormTest, RmsNorm) {
  for (int64_t width : kRmsWidths) {
    for (bool adds : {false, true}) {
      const int64_t rows = pick(1, 70);
      Tensor residual = activations(rows, width), delta = activations(rows, width);
      Tensor w = tensor(GetParam(), {width}, random(width));
      Tensor sum = filled(GetParam(), {rows, width}, 0), y = filled(GetParam(), {rows, width}, 0);
      Tensor rstd = filled(DType::kF32, {rows}, 0);
      ok(kernels().rms_norm(stream(), residual.in(), adds ? delta.in() : In(), w.in(), kEpsilon,
                            adds ? sum.out() : Out(), y.out(), rstd.out(), Out()));
      Values x = residual.values();
      if (adds) {
        const Values d = delta.values();
        for (size_t i = 0; i < x.size(); ++i) x[i] += d[i];
        expect_close(sum.values(), x, stored(), "sum");
        x = sum.values();
      }
      const auto want = reference::rms_norm(x, w.values(), kEpsilon, width);
      expect_close(rstd.values(), want.rstd, {1e-6, 1e-5}, "rstd");
      expect_close(y.values(), want.y, rounded(GetParam(), 4), "y");
    }
  }
}

TEST_P(NormTest, RmsNormBackwardAccumulates) {
  for (int64_t width : kRmsWidths) {
    const int64_t rows = pick(1, 200);
    Tensor x = activations(rows, width), dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor w = tensor(GetParam(), {width}, random(width));
    Tensor dx = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor dw = tensor(DType::kF32, {width}, random(width));
    Tensor rstd = tensor(DType::kF32, {rows}, reference::rms_norm(x.values(), w.values(), kEpsilon, width).rstd);
    Values want_dx = dx.values(), want_dw = dw.values();
    reference::rms_norm_backward(dy.values(), x.values(), w.values(), kEpsilon, width, want_dx, want_dw);
    ok(kernels().rms_norm_backward(stream(), dy.in(), x.in(), w.in(), rstd.in(), dx.inout(), dw.inout()));
    expect_close(dx.values(), want_dx, {2e-5, stored().relative * 2}, "dx");
    expect_close(dw.values(), want_dw, {1e-4, 2e-5}, "dweight");
  }
}

TEST_F(NormTest, Refusals) {
  Tensor x = filled(DType::kF32, {4, 6}, 0), half = filled(DType::kBF16, {4, 6}, 0), w = filled(DType::kF32, {6}, 0);
  Tensor rows = filled(DType::kF32, {4}, 0), wrong = filled(DType::kF32, {5}, 0);
  const auto layer_norm = [&](In delta, In weight, Out sum, Out y, Out mean) {
    return kernels().layer_norm(stream(), x.in(), delta, weight, In(), kEpsilon, sum, y, mean, rows.out(), Out());
  };
  expect_refused(layer_norm(In(), w.in(), x.out(), x.out(), rows.out()), {"layer_norm: sum", "delta is absent"});
  expect_refused(layer_norm(x.in(), w.in(), Out(), x.out(), rows.out()), {"layer_norm: sum", "got nothing"});
  expect_refused(layer_norm(In(), wrong.in(), Out(), x.out(), rows.out()), {"layer_norm: weight", "[5]", "[6]"});
  expect_refused(layer_norm(In(), w.in(), Out(), half.out(), rows.out()), {"layer_norm: y", "bf16", "as residual"});
  expect_refused(layer_norm(In(), w.in(), Out(), x.out(), wrong.out()), {"layer_norm: mean", "[5]", "[4]"});
  expect_refused(kernels().rms_norm(stream(), x.in(), In(), wrong.in(), kEpsilon, Out(), x.out(), rows.out(), Out()),
                 {"rms_norm: weight"});
  expect_refused(kernels().rms_norm_backward(stream(), half.in(), x.in(), w.in(), rows.in(), x.inout(), w.inout()),
                 {"rms_norm_backward: dy", "bf16", "f32 as x"});
  expect_refused(kernels().layer_norm_backward(stream(), x.in(), x.in(), w.in(), rows.in(), rows.in(), x.inout(),
                                               w.inout(), rows.inout()),
                 {"layer_norm_backward: dbias", "[4]", "[6]"});
}

}  // namespace
}  // namespace telar::backend::testing
