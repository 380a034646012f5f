#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>

#include "tests/reference/rope.h"
#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

class AttentionTest : public KernelTest {
 protected:
  // Sequences around block and chunk edges, grouped heads, head sizes that no vector divides.
  std::vector<AttentionDims> dims() {
    std::vector<AttentionDims> all = {{1, 1, 1, 1, 1},   {2, 3, 2, 1, 8},   {1, 63, 1, 1, 17},  {1, 64, 2, 2, 16},
                                      {1, 65, 3, 1, 32}, {2, 129, 4, 2, 6}, {1, 257, 2, 1, 64}, {1, 321, 1, 1, 128}};
    for (int i = 0; i < 4; ++i) {
      const int64_t kv = pick(1, 3);
      all.push_back({pick(1, 2), pick(1, 300), kv * pick(1, 3), kv, 2 * pick(1, 40)});
    }
    return all;
  }
  static reference::AttentionShape shape(const AttentionDims& d) {
    return {d.batch, d.sequence, d.heads, d.kv_heads, d.head_dim};
  }
};
TELAR_FLOAT_TYPES(AttentionTest);

TEST_P(AttentionTest, Forward) {
  for (const AttentionDims& d : dims()) {
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width();
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    Tensor o = filled(GetParam(), {tokens, d.heads * d.head_dim}, -9);
    Tensor lse = filled(DType::kF32, {d.batch, d.heads, d.sequence}, -9);
    ok(kernels().attention(stream(), d, qkv.in(), In(), o.out(), lse.out()));
    const auto want = reference::attention(shape(d), qkv.values());
    // Rounded probabilities: half a unit of a mean of |v| at the most, and half of that again for the sum that divides
    // them.
    const double unit = half_unit(GetParam());
    const bool coarse = unit > 0 && rig().rounds_probabilities();
    expect_close(o.values(), want.o, coarse ? Tolerance{unit, 2 * unit} : rounded(GetParam(), 3), "o");
    expect_close(lse.values(), want.lse, {1e-5, 1e-5}, "lse");
  }
}

TEST_P(AttentionTest, Backward) {
  for (const AttentionDims& d : dims()) {
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width(), out = d.heads * d.head_dim;
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    const auto forward = reference::attention(shape(d), qkv.values());
    Tensor o = tensor(GetParam(), {tokens, out}, forward.o);
    Tensor lse = tensor(DType::kF32, {d.batch, d.heads, d.sequence}, forward.lse);
    Tensor d_o = tensor(GetParam(), {tokens, out}, random(tokens * out));
    Tensor dqkv = filled(GetParam(), {tokens, width}, -9);
    ok(kernels().attention_backward(stream(), d, qkv.in(), In(), o.in(), lse.in(), d_o.in(), dqkv.out()));
    // The rounding of `o` goes through rowsum(dO O): sqrt(D) errors of half_unit |o| / 2, times |q| / sqrt(D).
    const double unit = half_unit(GetParam());
    const Tolerance allowed = unit > 0 ? Tolerance{8 * unit, 5 * unit} : Tolerance{3e-5, 2e-5};
    expect_close(dqkv.values(), reference::attention_backward(shape(d), qkv.values(), d_o.values()), allowed, "dqkv");
  }
}

// Scores far beyond where e^x overflows, and one key that takes all the weight.
TEST_F(AttentionTest, LargeScores) {
  const AttentionDims d{1, 130, 1, 1, 16};
  Tensor qkv = tensor(DType::kF32, {130, 48}, random(130 * 48, 30.0));
  Tensor o = filled(DType::kF32, {130, 16}, 0), lse = filled(DType::kF32, {1, 1, 130}, 0);
  ok(kernels().attention(stream(), d, qkv.in(), In(), o.out(), lse.out()));
  const auto want = reference::attention(shape(d), qkv.values());
  // Scores near 10^4 have f32 errors near 10^-3, and so have their exponents.
  expect_close(o.values(), want.o, {0.2, 5e-3}, "o");
  expect_close(lse.values(), want.lse, {1e-3, 1e-6}, "lse");
}

TEST_P(AttentionTest, RopeTurnsAndTurnsBack) {
  for (const AttentionDims& d : dims()) {
    if (d.head_dim % 2 != 0) continue;
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width(), half = d.head_dim / 2;
    Values angles(d.sequence * d.head_dim);
    for (int64_t t = 0; t < d.sequence; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(i) / half);
        angles[t * d.head_dim + i] = std::cos(angle);
        angles[t * d.head_dim + half + i] = std::sin(angle);
      }
    }
    Tensor table = tensor(DType::kF32, {d.sequence, d.head_dim}, angles);
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    Values want = qkv.values();
    const Values before = want;
    reference::rope(want, width, d.heads + d.kv_heads, d.head_dim, table.values(), d.sequence, false);
    ok(kernels().rope(stream(), d, table.in(), In(), qkv.inout()));
    expect_close(qkv.values(), want, rounded(GetParam()), "turned");
    want = qkv.values();
    reference::rope(want, width, d.heads + d.kv_heads, d.head_dim, table.values(), d.sequence, true);
    ok(kernels().rope_backward(stream(), d, table.in(), In(), qkv.inout()));
    expect_close(qkv.values(), want, rounded(GetParam()), "turned back");
    const double two_roundings = std::max(1e-5, 13 * half_unit(GetParam()));
    expect_close(qkv.values(), before, {two_roundings, 0}, "there and back");
  }
}

TEST_F(AttentionTest, Refusals) {
  const AttentionDims d{1, 4, 2, 1, 6};
  Tensor qkv = filled(DType::kF32, {4, 24}, 0), o = filled(DType::kF32, {4, 12}, 0), lse = filled(DType::kF32, {8}, 0);
  Tensor half = filled(DType::kBF16, {4, 12}, 0), table = filled(DType::kF32, {4, 6}, 0);
  AttentionDims wrong = d;
  wrong.heads = 3;
  wrong.kv_heads = 2;
  expect_refused(kernels().attention(stream(), wrong, qkv.in(), In(), o.out(), lse.out()),
                 {"attention: dims.heads", "got 3", "kv_heads = 2"});
  wrong = d;
  wrong.sequence = 0;
  expect_refused(kernels().attention(stream(), wrong, qkv.in(), In(), o.out(), lse.out()), {"dims.sequence", "got 0"});
  expect_refused(kernels().attention(stream(), d, o.in(), In(), o.out(), lse.out()),
                 {"attention: qkv", "[4, 12]", "[4, 24]"});
  expect_refused(kernels().attention(stream(), d, qkv.in(), In(), half.out(), lse.out()), {"attention: o", "as qkv"});
  expect_refused(kernels().attention(stream(), d, qkv.in(), In(), o.out(), o.out()), {"attention: lse", "[8]"});
  expect_refused(kernels().attention_backward(stream(), d, qkv.in(), In(), o.in(), lse.in(), qkv.in(), qkv.out()),
                 {"attention_backward: d_o", "[4, 24]"});
  wrong = d;
  wrong.head_dim = 3;
  expect_refused(kernels().rope(stream(), wrong, table.in(), In(), qkv.inout()),
                 {"rope: dims.head_dim", "got 3", "even"});
  expect_refused(kernels().rope_backward(stream(), d, lse.in(), In(), qkv.inout()), {"rope_backward: table", "[4, 6]"});
}

}  // namespace
}  // namespace telar::backend::testing
