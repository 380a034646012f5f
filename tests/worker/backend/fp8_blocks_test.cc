#include <cmath>

#include "tests/reference/fp8.h"
#include "tests/reference/linear.h"
#include "tests/worker/backend/kernel_test.h"
#include "worker/backend/fp8.h"

namespace telar::backend::testing {
namespace {

const reference::Fp8Format& format(DType dtype) {
  return dtype == DType::kF8E4M3 ? reference::kE4M3 : reference::kE5M2;
}

Shape inverse_shape(bool square, const Shape& q) {
  return fp8_inverse_shape(square ? Fp8Scaled::kSquares : Fp8Scaled::kRuns, q[0], q[1]);
}

// Of q[R, K], by element.
Values spread(const Values& inverse, bool square, const Shape& q) {
  const int64_t width = inverse_shape(square, q)[1];
  Values all;
  for (int64_t row = 0; row < q[0]; ++row) {
    for (int64_t column = 0; column < q[1]; ++column) {
      const int64_t block = column / kFp8Block;
      all.push_back(inverse[square ? row / kFp8Block * width + block : block * width + row]);
    }
  }
  return all;
}

Values transposed(const Values& x, int64_t height, int64_t width) {
  Values y(x.size());
  for (int64_t t = 0; t < height; ++t) {
    for (int64_t c = 0; c < width; ++c) y[c * height + t] = x[t * width + c];
  }
  return y;
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

class Fp8BlocksTest : public KernelTest {
 protected:
  // One copy: [height, width], of which `values` are the elements.
  void expect_copy(const Tensor& q, const Tensor& inverse, bool square, DType dtype, const Values& values,
                   int64_t height, int64_t width, const std::string& what) {
    const auto want =
        reference::quantize_blocks(format(dtype), values, height, width, square ? kFp8Block : 1, kFp8Block);
    EXPECT_EQ(q.bytes(), want.codes) << what;
    const Values got = spread(inverse.values(), square, {height, width});
    int64_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += !same(got[i], want.inverse_scales[i]);
    EXPECT_EQ(wrong, 0) << what;
  }

  void expect_quantized(const Shape& shape, const Values& values, DType dtype) {
    Tensor x = tensor(GetParam(), shape, values);
    const Values stored = x.values();
    for (const bool square : {false, true}) {
      for (const auto& [with_rows, with_columns] : {std::pair(true, true), {true, false}, {false, true}}) {
        const Shape turned{shape[1], shape[0]};
        Tensor rows = filled(dtype, shape, 3), columns = filled(dtype, turned, 3);
        Tensor rows_inverse = filled(DType::kF32, inverse_shape(square, shape), -9);
        Tensor columns_inverse = filled(DType::kF32, inverse_shape(square, turned), -9);
        ok(kernels().quantize_blocks(stream(), x.in(), square, with_rows ? rows.out() : Out(),
                                     with_rows ? rows_inverse.out() : Out(), with_columns ? columns.out() : Out(),
                                     with_columns ? columns_inverse.out() : Out()));
        const std::string what = shape.to_string() + (square ? " squares" : " runs");
        if (with_rows) expect_copy(rows, rows_inverse, square, dtype, stored, shape[0], shape[1], what + " rows");
        if (!with_columns) continue;
        expect_copy(columns, columns_inverse, square, dtype, transposed(stored, shape[0], shape[1]), shape[1], shape[0],
                    what + " columns");
      }
    }
  }
};
TELAR_FLOAT_TYPES(Fp8BlocksTest);

TEST_P(Fp8BlocksTest, QuantizesToTheBit) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{16, 128}, Shape{130, 257}, Shape{256, 384}}) {
      Values values = random(shape.elements());
      for (double& value : values) value *= std::exp2(static_cast<double>(pick(-14, 2)));
      expect_quantized(shape, values, dtype);
    }
  }
}

// A block that is not finite, or nothing but zeros, is so alone.
TEST_P(Fp8BlocksTest, OddBlocks) {
  for (const double odd : {HUGE_VAL, -HUGE_VAL, std::nan(""), 0.0}) {
    Values values = random(256 * 256);
    if (odd == 0) std::fill(values.begin(), values.begin() + 128 * 256, 0.0);
    values[130 * 256 + 200] = odd;
    expect_quantized({256, 256}, values, DType::kF8E4M3);
  }
}

class Fp8BlockProductTest : public Fp8BlocksTest {
 protected:
  Values whole(int64_t n) {
    const std::vector<int32_t> drawn = integers(n, -4, 4);
    return {drawn.begin(), drawn.end()};
  }
  Values powers(int64_t n) {
    Values values(static_cast<size_t>(n));
    for (double& value : values) value = std::exp2(static_cast<double>(pick(-2, 2)));
    return values;
  }
  static Values times(Values a, const Values& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
    return a;
  }
};
INSTANTIATE_TEST_SUITE_P(Results, Fp8BlockProductTest, ::testing::Values(DType::kF32, DType::kBF16), dtype_name);

constexpr int64_t kProductSizes[][3] = {{128, 128, 128}, {128, 256, 384}, {384, 128, 512}, {256, 384, 128}};

TEST_P(Fp8BlockProductTest, ExactWhereSumsAre) {
  for (const auto& [rows, columns, terms] : kProductSizes) {
    for (const bool square : {false, true}) {
      for (const DType left : {DType::kF8E4M3, DType::kF8E5M2}) {
        for (const bool with_bias : {false, true}) {
          const Values x = whole(rows * terms), w = whole(columns * terms), added = whole(columns);
          const Shape a_shape = inverse_shape(false, {rows, terms}), b_shape = inverse_shape(square, {columns, terms});
          const Values a_scales = powers(a_shape.elements()), b_scales = powers(b_shape.elements());
          Tensor a = tensor(left, {rows, terms}, x), b = tensor(DType::kF8E4M3, {columns, terms}, w);
          Tensor a_inverse = tensor(DType::kF32, a_shape, a_scales), b_inverse = tensor(DType::kF32, b_shape, b_scales);
          Tensor bias = tensor(DType::kBF16, {columns}, added);
          Tensor y = filled(GetParam(), {rows, columns}, std::nan(""));
          ok(kernels().fp8_product(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(),
                                   with_bias ? bias.in() : In(), false, y.out()));
          Tensor want = tensor(GetParam(), {rows, columns},
                               reference::linear(times(x, spread(a_scales, false, {rows, terms})),
                                                 times(w, spread(b_scales, square, {columns, terms})),
                                                 with_bias ? added : Values(), rows, columns, terms));
          EXPECT_EQ(y.values(), want.values()) << rows << " x " << columns << " x " << terms << " squares " << square;
        }
      }
    }
  }
}

TEST_F(Fp8BlockProductTest, WgradWritesOrAdds) {
  for (const auto& [rows, columns, terms] : kProductSizes) {
    const Values x = whole(rows * terms), w = whole(columns * terms);
    const Shape a_shape = inverse_shape(false, {rows, terms}), b_shape = inverse_shape(false, {columns, terms});
    const Values a_scales = powers(a_shape.elements()), b_scales = powers(b_shape.elements());
    Tensor a = tensor(DType::kF8E4M3, {rows, terms}, x), b = tensor(DType::kF8E4M3, {columns, terms}, w);
    Tensor a_inverse = tensor(DType::kF32, a_shape, a_scales), b_inverse = tensor(DType::kF32, b_shape, b_scales);
    Tensor dweight = filled(DType::kF32, {rows, columns}, std::nan(""));
    Values want = reference::linear(times(x, spread(a_scales, false, {rows, terms})),
                                    times(w, spread(b_scales, false, {columns, terms})), {}, rows, columns, terms);
    for (const bool adds : {false, true}) {
      ok(kernels().fp8_wgrad(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(), adds, dweight.inout()));
      EXPECT_EQ(dweight.values(), want) << "adds " << adds;
      for (double& value : want) value *= 2;
    }
  }
}

TEST_F(Fp8BlockProductTest, Refusals) {
  Tensor x = filled(DType::kBF16, {16, 256}, 0), rows = filled(DType::kF8E4M3, {16, 256}, 0);
  Tensor runs = filled(DType::kF32, {2, 16}, 1), squares = filled(DType::kF32, {1, 4}, 1);
  Tensor one = filled(DType::kF32, {1}, 1), y = filled(DType::kBF16, {16, 16}, 0);
  expect_refused(kernels().quantize_blocks(stream(), x.in(), true, rows.out(), runs.out(), Out(), Out()),
                 {"quantize_blocks: rows_inverse", "[2, 16]", "[1, 4]"});
  expect_refused(kernels().quantize_blocks(stream(), x.in(), false, rows.out(), Out(), Out(), Out()),
                 {"quantize_blocks: rows_inverse", "got nothing", "wanted a tensor"});
  expect_refused(kernels().quantize_blocks(stream(), x.in(), false, Out(), Out(), Out(), Out()),
                 {"rows, columns or both"});
  const auto call = [&](const Tensor& a_inverse, const Tensor& b_inverse) {
    return kernels().fp8_product(stream(), rows.in(), a_inverse.in(), rows.in(), b_inverse.in(), In(), false, y.out());
  };
  expect_refused(call(squares, squares), {"fp8_product: a_inverse", "[1, 4]", "runs of 128"});
  expect_refused(call(runs, one), {"fp8_product: b_inverse", "blocks beside blocks"});
  expect_refused(call(one, squares), {"fp8_product: b_inverse", "[1] beside [1]"});
}

}  // namespace
}  // namespace telar::backend::testing
