#include "tests/reference/fp8.h"

#include <cmath>

#include "tests/reference/linear.h"
#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

using reference::Fp8Format;

const Fp8Format& format_of(DType dtype) { return dtype == DType::kF8E4M3 ? reference::kE4M3 : reference::kE5M2; }

class Fp8Test : public KernelTest {
 protected:
  double amax_of(Tensor& x) {
    Tensor found = filled(DType::kF32, {1}, -9);
    ok(kernels().amax(stream(), x.in(), In(), found.out()));
    return found.values()[0];
  }
  void expect_quantized(DType dtype, Shape shape, const Values& values, double amax) {
    Tensor x = tensor(GetParam(), shape, values), greatest = filled(DType::kF32, {1}, amax);
    const auto want = reference::quantize(format_of(dtype), x.values(), greatest.values()[0], shape[0], shape[1]);
    for (const bool with_rows : {true, false}) {
      for (const bool with_columns : {true, false}) {
        if (!with_rows && !with_columns) continue;
        Tensor rows = filled(dtype, shape, 3), columns = filled(dtype, {shape[1], shape[0]}, 3);
        Tensor inverse = filled(DType::kF32, {1}, -9);
        ok(kernels().quantize(stream(), x.in(), greatest.in(), with_rows ? rows.out() : Out(),
                              with_columns ? columns.out() : Out(), inverse.out(), InOut()));
        const std::string what = shape.to_string() + (with_rows ? " rows" : "") + (with_columns ? " columns" : "");
        if (with_rows) {
          EXPECT_EQ(rows.bytes(), want.rows) << what;
        }
        if (with_columns) {
          EXPECT_EQ(columns.bytes(), want.columns) << what;
        }
        if (std::isnan(want.inverse_scale)) {
          EXPECT_TRUE(std::isnan(inverse.values()[0])) << what;
        } else {
          EXPECT_EQ(inverse.values()[0], want.inverse_scale) << what;
        }
      }
    }
  }
};
TELAR_FLOAT_TYPES(Fp8Test);

TEST_P(Fp8Test, AmaxIsTheGreatestMagnitude) {
  for (const int64_t n : {1, 2, 15, 16, 129, 5000, 70001}) {
    Values values = random(n);
    values[pick(0, n - 1)] = -7;
    Tensor x = tensor(GetParam(), {n}, values);
    EXPECT_EQ(amax_of(x), reference::amax(x.values())) << n;
    EXPECT_EQ(amax_of(x), reference::amax(x.values())) << n << ", again";
  }
  Tensor zeros = filled(GetParam(), {3, 7}, 0);
  EXPECT_EQ(amax_of(zeros), 0);
}

TEST_P(Fp8Test, AmaxKeepsWhatIsNotFinite) {
  for (const double odd : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    Values values = random(4099);
    values[4000] = odd;
    Tensor x = tensor(GetParam(), {4099}, values);
    EXPECT_FALSE(std::isfinite(amax_of(x)));
    values[17] = std::nan("");
    Tensor both = tensor(GetParam(), {4099}, values);
    EXPECT_TRUE(std::isnan(amax_of(both)));
  }
}

// As the activations find it in passing: of what they store.
TEST_P(Fp8Test, AmaxInPassing) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {65, 256}, {7, 2056}, {40, 1001}}) {
    Tensor x = tensor(GetParam(), {rows, 2 * width}, random(2 * rows * width));
    Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor y = filled(GetParam(), {rows, width}, 0), dx = filled(GetParam(), {rows, 2 * width}, 0);
    Tensor y_amax = filled(DType::kF32, {1}, 99), dx_amax = filled(DType::kF32, {1}, 99);
    ok(kernels().swiglu(stream(), x.in(), y.out(), y_amax.out()));
    EXPECT_EQ(y_amax.values()[0], reference::amax(y.values()));
    ok(kernels().swiglu_backward(stream(), dy.in(), x.in(), dx.out(), dx_amax.out()));
    EXPECT_EQ(dx_amax.values()[0], reference::amax(dx.values()));
  }
}

TEST_P(Fp8Test, AmaxOfNormsAndGeluInPassing) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {65, 256}, {7, 2056}, {40, 1001}}) {
    Tensor x = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor w = tensor(GetParam(), {width}, random(width)), dbias = filled(DType::kF32, {width}, 0);
    Tensor y = filled(GetParam(), {rows, width}, 0), amax = filled(DType::kF32, {1}, 99);
    Tensor mean = filled(DType::kF32, {rows}, 0), rstd = filled(DType::kF32, {rows}, 0);
    const auto expect_found = [&](const char* op) {
      EXPECT_EQ(amax.values()[0], reference::amax(y.values())) << op << " " << rows << " x " << width;
    };
    ok(kernels().layer_norm(stream(), x.in(), In(), w.in(), In(), 1e-5f, Out(), y.out(), mean.out(), rstd.out(),
                            amax.out()));
    expect_found("layer_norm");
    ok(kernels().rms_norm(stream(), x.in(), In(), w.in(), 1e-5f, Out(), y.out(), rstd.out(), amax.out()));
    expect_found("rms_norm");
    ok(kernels().gelu(stream(), x.in(), y.out(), amax.out()));
    expect_found("gelu");
    ok(kernels().gelu_backward(stream(), dy.in(), x.in(), y.out(), InOut(), amax.out()));
    expect_found("gelu_backward");
    ok(kernels().gelu_backward(stream(), dy.in(), x.in(), y.out(), dbias.inout(), amax.out()));
    expect_found("gelu_backward with a bias");
  }
}

TEST_P(Fp8Test, QuantizesToTheBit) {
  std::vector<Shape> shapes = {{1, 1}, {3, 17}, {65, 3}, {16, 16}, {32, 64}, {64, 144}, {130, 257}, {256, 272}};
  for (int i = 0; i < 4; ++i) shapes.push_back({pick(1, 150), pick(1, 150)});
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const Shape& shape : shapes) {
      // Over many binades, so that there are subnormals and zeros.
      Values values = random(shape.elements());
      for (double& value : values) value *= std::exp2(static_cast<double>(pick(-14, 2)));
      Tensor x = tensor(GetParam(), shape, values);
      expect_quantized(dtype, shape, values, reference::amax(x.values()));
    }
  }
}

TEST_P(Fp8Test, QuantizesOddAmaxes) {
  const Values values = {0, -0.0, 1, -2, 448, -57344, 1e-6, 3e-39, 0.3, -7, 240, 1e4, 5, 6, 7, 8};
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    expect_quantized(dtype, {4, 4}, Values(16, 0.0), 0);
    // Of less than the greatest, as of another tensor: what is beyond saturates.
    for (const double amax : {0.5, 1.75, 1.7500001, 448.0, 57344.0, 1e-45, 1e-39, 3e38, HUGE_VAL, std::nan("")}) {
      expect_quantized(dtype, {4, 4}, values, amax);
    }
  }
}

TEST_P(Fp8Test, AmaxThatIsKnownIsTaken) {
  Tensor x = tensor(GetParam(), {4099}, random(4099));
  for (const double known : {0.0, 0.125, 3e30}) {
    Tensor before = filled(DType::kF32, {1}, known), found = filled(DType::kF32, {1}, -9);
    ok(kernels().amax(stream(), x.in(), before.in(), found.out()));
    EXPECT_EQ(found.values()[0], known > 0 ? before.values()[0] : reference::amax(x.values()));
  }
}

TEST_P(Fp8Test, SeesTheGreatestInPassing) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{130, 257}, Shape{256, 272}}) {
    for (const double before : {0.0, 1e-3, 1e9, HUGE_VAL}) {
      for (const double odd : {0.0, -7.0, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
        Values values = random(shape.elements());
        values[pick(0, shape.elements() - 1)] = odd;
        Tensor x = tensor(GetParam(), shape, values), amax = filled(DType::kF32, {1}, 1);
        Tensor rows = filled(DType::kF8E4M3, shape, 3), columns = filled(DType::kF8E4M3, {shape[1], shape[0]}, 3);
        Tensor inverse = filled(DType::kF32, {1}, 0), seen = filled(DType::kF32, {1}, before);
        ok(kernels().quantize(stream(), x.in(), amax.in(), rows.out(), columns.out(), inverse.out(), seen.inout()));
        const double greatest = reference::amax(x.values());
        const double want =
            std::max(static_cast<double>(static_cast<float>(before)), std::isnan(greatest) ? HUGE_VAL : greatest);
        EXPECT_EQ(seen.values()[0], want) << shape.to_string() << " with " << odd << " behind " << before;
        const auto bytes = reference::quantize(reference::kE4M3, x.values(), 1, shape[0], shape[1]);
        EXPECT_EQ(rows.bytes(), bytes.rows) << "with " << odd;  // A scale that is known hides no infinity.
        EXPECT_EQ(columns.bytes(), bytes.columns) << "with " << odd;
      }
    }
  }
}

TEST_F(Fp8Test, TransposesBytes) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{16, 8}, Shape{130, 257}, Shape{256, 272}}) {
    Tensor x = tensor(DType::kF8E4M3, shape, random(shape.elements()));
    Tensor y = filled(DType::kF8E4M3, {shape[1], shape[0]}, 3);
    ok(kernels().transpose(stream(), x.in(), y.out()));
    const std::vector<uint8_t> from = x.bytes(), to = y.bytes();
    int64_t wrong = 0;
    for (int64_t t = 0; t < shape[0]; ++t) {
      for (int64_t c = 0; c < shape[1]; ++c) wrong += to[c * shape[0] + t] != from[t * shape[1] + c];
    }
    EXPECT_EQ(wrong, 0) << shape.to_string();
  }
}

TEST_F(Fp8Test, InverseScales) {
  for (const int64_t n : {1, 5, 300}) {
    Values values = random(n);
    for (double& value : values) value = std::abs(value);
    values[0] = HUGE_VAL;
    if (n > 1) values[1] = 0;
    Tensor amax = tensor(DType::kF32, {n}, values), inverses = filled(DType::kF32, {n, 4}, -9);
    ok(kernels().inverse_scales(stream(), amax.in(), inverses.out()));
    for (int64_t i = 0; i < 4 * n; ++i) {
      const double want = i % 4 == 0 ? 1 / reference::fp8_scale(reference::kE4M3, amax.values()[i / 4]) : 0;
      const double got = inverses.values()[i];
      EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << i;
    }
  }
}

TEST_F(Fp8Test, Histories) {
  for (const auto& [rows, entries] : {std::pair<int64_t, int64_t>{1, 1}, {3, 2}, {5, 16}, {12, 257}, {7, 1024}}) {
    Values magnitudes = random(rows * entries);
    for (double& value : magnitudes) value = std::abs(value);
    Tensor history = tensor(DType::kF32, {rows, entries}, magnitudes), amax = filled(DType::kF32, {rows}, -1);
    const Values before = history.values();
    for (const bool newest : {true, false}) {
      ok(kernels().history_amax(stream(), history.in(), newest, 4, amax.out()));
      for (int64_t n = 0; n < rows; ++n) {
        const auto row = before.begin() + n * entries;
        EXPECT_EQ(amax.values()[n], 4 * (newest ? row[0] : *std::max_element(row, row + entries)));
      }
    }
    Values pushed = random(rows, 2);
    for (double& value : pushed) value = std::abs(value);
    if (rows > 2) pushed[1] = HUGE_VAL;
    if (rows > 4) pushed[4] = std::nan("");
    Tensor newest = tensor(DType::kF32, {rows}, pushed);
    ok(kernels().push_history(stream(), newest.in(), history.inout()));
    Values want = before;
    for (int64_t n = 0; n < rows; ++n) {
      if (!std::isfinite(pushed[n])) continue;
      const auto row = want.begin() + n * entries;
      std::copy_backward(row, row + entries - 1, row + entries);
      row[0] = newest.values()[n];
    }
    EXPECT_EQ(history.values(), want) << rows << " x " << entries;
  }
}

// Scales are powers of two, so a part of a tensor that is scaled by its own greatest magnitude gets the values that it
// has in the whole, but for those that the whole's scale leaves below the least normal number: there the whole rounds
// to its subnormals' unit, of which a half is amax * 2^-10 / 224 at most, or amax * 2^-17 / 28672 in E5M2.
TEST_P(Fp8Test, PartsHaveTheValuesOfTheWhole) {
  const int64_t rows = 32, width = 64;
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    Values values = random(rows * width);
    for (int64_t i = 0; i < rows * width; ++i) values[i] *= std::exp2(static_cast<double>(i / width) - 24);
    Tensor x = tensor(GetParam(), {rows, width}, values);
    const auto dequantized = [&](int64_t first, int64_t count) {
      Tensor amax = filled(DType::kF32, {1}, 0), inverse = filled(DType::kF32, {1}, 0), q = filled(dtype, {count}, 0);
      const In part = range(x.in(), first, count);
      ok(kernels().amax(stream(), part, In(), amax.out()));
      ok(kernels().quantize(stream(), part, amax.in(), q.out(), Out(), inverse.out(), InOut()));
      Values result = q.values();
      for (double& value : result) value *= inverse.values()[0];
      return result;
    };
    const Values whole = dequantized(0, rows * width), stored = x.values();
    const double amax = reference::amax(stored), scale = reference::fp8_scale(format_of(dtype), amax);
    const bool e4m3 = dtype == DType::kF8E4M3;
    const double least_normal = e4m3 ? 0x1p-6 : 0x1p-14;
    const double half_unit = amax * (e4m3 ? 0x1p-10 / 224 : 0x1p-17 / 28672);
    int normal = 0, other = 0;
    for (int64_t first = 0; first < rows * width; first += 4 * width) {
      const Values part = dequantized(first, 4 * width);
      for (int64_t i = 0; i < 4 * width; ++i) {
        if (std::abs(stored[first + i]) * scale >= least_normal) {
          EXPECT_EQ(part[i], whole[first + i]) << first + i;
          ++normal;
        } else {
          EXPECT_NEAR(part[i], whole[first + i], 2 * half_unit) << first + i;
          other += part[i] != whole[first + i];
        }
      }
    }
    EXPECT_GT(normal, 100);
    EXPECT_GT(other, e4m3 ? 100 : 0);
  }
}

TEST_P(Fp8Test, ColumnSumsAccumulate) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {129, 65}, {300, 64}}) {
    Tensor x = tensor(GetParam(), {rows, columns}, random(rows * columns));
    Tensor sums = tensor(DType::kF32, {columns}, random(columns));
    Values want = sums.values();
    const Values values = x.values();
    for (int64_t i = 0; i < rows * columns; ++i) want[i % columns] += values[i];
    ok(kernels().column_sums(stream(), x.in(), sums.inout()));
    expect_close(sums.values(), want, {1e-5 * std::sqrt(static_cast<double>(rows)), 1e-5}, "sums");
  }
}

TEST_F(Fp8Test, Refusals) {
  Tensor x = filled(DType::kBF16, {4, 6}, 0), amax = filled(DType::kF32, {1}, 0),
         rows = filled(DType::kF8E4M3, {4, 6}, 0);
  Tensor columns = filled(DType::kF8E5M2, {6, 4}, 0), two = filled(DType::kF32, {2}, 0);
  expect_refused(kernels().amax(stream(), rows.in(), In(), amax.out()), {"amax: x", "got f8e4m3 [4, 6]"});
  expect_refused(kernels().amax(stream(), x.in(), In(), two.out()), {"amax: amax", "f32 [2]", "f32 [1]"});
  expect_refused(kernels().quantize(stream(), x.in(), amax.in(), Out(), Out(), amax.out(), InOut()),
                 {"rows, columns or both"});
  expect_refused(kernels().quantize(stream(), x.in(), amax.in(), rows.out(), columns.out(), amax.out(), InOut()),
                 {"columns", "f8e5m2", "f8e4m3 as rows"});
  expect_refused(kernels().quantize(stream(), x.in(), amax.in(), Out(), rows.out(), amax.out(), InOut()),
                 {"columns", "[4, 6]", "[6, 4]"});
  Tensor history = filled(DType::kF32, {2, 3}, 0), four = filled(DType::kF32, {4}, 0);
  expect_refused(kernels().amax(stream(), x.in(), two.in(), amax.out()), {"amax: known", "f32 [2]", "f32 [1]"});
  expect_refused(kernels().quantize(stream(), x.in(), amax.in(), rows.out(), Out(), amax.out(), two.inout()),
                 {"quantize: seen", "f32 [2]", "f32 [1]"});
  expect_refused(kernels().history_amax(stream(), history.in(), true, 1, four.out()),
                 {"history_amax: amax", "f32 [4]", "f32 [2]"});
  expect_refused(kernels().push_history(stream(), four.in(), history.inout()),
                 {"push_history: amax", "f32 [4]", "f32 [2]"});
  expect_refused(kernels().transpose(stream(), rows.in(), rows.out()), {"transpose: y", "[4, 6]", "[6, 4]"});
  expect_refused(kernels().inverse_scales(stream(), two.in(), four.out()), {"inverse_scales: inverses", "[4]"});
  expect_refused(kernels().column_sums(stream(), x.in(), two.inout()), {"column_sums: sums", "[2]", "[6]"});
}

struct Fp8Sizes {
  int64_t rows, columns, terms;
};

class Fp8LinearTest : public KernelTest {
 protected:
  static constexpr Fp8Sizes kSizes[] = {{1, 16, 16},   {3, 32, 48},    {65, 48, 144},
                                        {17, 160, 32}, {128, 64, 256}, {300, 272, 512}};
  static constexpr std::pair<DType, DType> kTypes[] = {
      {DType::kF8E4M3, DType::kF8E4M3}, {DType::kF8E5M2, DType::kF8E4M3}, {DType::kF8E4M3, DType::kF8E5M2}};
  // Small whole numbers: their sums are exact on whatever adds them.
  Values whole(int64_t n) {
    const std::vector<int32_t> drawn = integers(n, -4, 4);
    return {drawn.begin(), drawn.end()};
  }
  static Values scaled(Values values, double by) {
    for (double& value : values) value *= by;
    return values;
  }
  // Of sums of products whose magnitudes add up to `of`: tensor cores keep some fourteen bits beside the greatest.
  static void expect_near(const Values& got, const Values& want, const Values& of, DType stored,
                          const std::string& what) {
    for (size_t i = 0; i < want.size(); ++i) {
      const double allowed = 0x1p-11 * of[i] + half_unit(stored) * std::abs(want[i]) + 1e-30;
      ASSERT_NEAR(got[i], want[i], allowed) << what << " at " << i;
    }
  }
  static Values magnitudes(Values values) {
    for (double& value : values) value = std::abs(value);
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Results, Fp8LinearTest, ::testing::Values(DType::kF32, DType::kBF16), dtype_name);

TEST_P(Fp8LinearTest, ExactWhereSumsAre) {
  for (const auto [rows, columns, terms] : kSizes) {
    for (const auto& [a_type, b_type] : kTypes) {
      for (const bool fast : {false, true}) {
        Tensor a = tensor(a_type, {rows, terms}, whole(rows * terms));
        Tensor b = tensor(b_type, {columns, terms}, whole(columns * terms));
        Tensor a_inverse = filled(DType::kF32, {1}, 0.25), b_inverse = filled(DType::kF32, {1}, 8);
        Tensor y = filled(GetParam(), {rows, columns}, std::nan(""));
        ok(kernels().fp8_product(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(), In(), fast, y.out()));
        Tensor want = tensor(GetParam(), {rows, columns},
                             scaled(reference::linear(a.values(), b.values(), {}, rows, columns, terms), 2));
        EXPECT_EQ(y.values(), want.values()) << rows << " x " << columns << " x " << terms;
      }
    }
  }
}

TEST_P(Fp8LinearTest, NearTheProductOfTheQuantisedOperands) {
  for (const auto [rows, columns, terms] : kSizes) {
    for (const auto& [a_type, b_type] : kTypes) {
      for (const bool fast : {false, true}) {
        for (const bool with_bias : {false, true}) {
          Tensor a = tensor(a_type, {rows, terms}, random(rows * terms, 30));
          Tensor b = tensor(b_type, {columns, terms}, random(columns * terms, 100));
          Tensor bias = tensor(DType::kBF16, {columns}, random(columns));
          Tensor a_inverse = filled(DType::kF32, {1}, 0x1p-6), b_inverse = filled(DType::kF32, {1}, 0x1p-9);
          Tensor y = filled(GetParam(), {rows, columns}, std::nan(""));
          ok(kernels().fp8_product(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(),
                                   with_bias ? bias.in() : In(), fast, y.out()));
          const Values x = scaled(a.values(), 0x1p-6), w = scaled(b.values(), 0x1p-9);
          const Values added = with_bias ? bias.values() : Values();
          expect_near(y.values(), reference::linear(x, w, added, rows, columns, terms),
                      reference::linear(magnitudes(x), magnitudes(w), magnitudes(added), rows, columns, terms),
                      GetParam(), "y");
        }
      }
    }
  }
}

TEST_F(Fp8LinearTest, WgradWritesOrAdds) {
  for (const auto [rows, columns, terms] : kSizes) {
    for (const auto& [a_type, b_type] : kTypes) {
      Tensor a = tensor(a_type, {rows, terms}, whole(rows * terms));
      Tensor b = tensor(b_type, {columns, terms}, whole(columns * terms));
      Tensor a_inverse = filled(DType::kF32, {1}, 0.5), b_inverse = filled(DType::kF32, {1}, 4);
      Tensor dweight = filled(DType::kF32, {rows, columns}, std::nan(""));
      const Values once = scaled(reference::linear(a.values(), b.values(), {}, rows, columns, terms), 2);
      ok(kernels().fp8_wgrad(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(), false, dweight.inout()));
      EXPECT_EQ(dweight.values(), once);
      ok(kernels().fp8_wgrad(stream(), a.in(), a_inverse.in(), b.in(), b_inverse.in(), true, dweight.inout()));
      EXPECT_EQ(dweight.values(), scaled(once, 2));
    }
  }
}

// What quantize() makes of a tensor that is not finite shows in every result.
TEST_F(Fp8LinearTest, NanScalesGiveNan) {
  Tensor a = filled(DType::kF8E4M3, {4, 16}, std::nan("")), b = filled(DType::kF8E4M3, {16, 16}, 1);
  Tensor nan = filled(DType::kF32, {1}, std::nan("")), one = filled(DType::kF32, {1}, 1);
  Tensor y = filled(DType::kBF16, {4, 16}, 0);
  ok(kernels().fp8_product(stream(), a.in(), nan.in(), b.in(), one.in(), In(), true, y.out()));
  for (const double value : y.values()) EXPECT_TRUE(std::isnan(value));
}

TEST_F(Fp8LinearTest, Refusals) {
  Tensor a = filled(DType::kF8E5M2, {4, 32}, 0), b = filled(DType::kF8E4M3, {16, 32}, 0),
         one = filled(DType::kF32, {1}, 1);
  Tensor y = filled(DType::kBF16, {4, 16}, 0), half = filled(DType::kF16, {4, 16}, 0);
  Tensor odd = filled(DType::kF8E4M3, {16, 24}, 0), few = filled(DType::kF8E4M3, {8, 32}, 0);
  Tensor wide = filled(DType::kF8E4M3, {4, 24}, 0);
  const auto call = [&](const Tensor& left, const Tensor& right, const Tensor& to) {
    return kernels().fp8_product(stream(), left.in(), one.in(), right.in(), one.in(), In(), false, to.out());
  };
  expect_refused(call(y, b, y), {"fp8_product: a", "got bf16", "f8e4m3 or f8e5m2"});
  expect_refused(call(a, odd, y), {"fp8_product: b", "[16, 24]", "[any, 32]"});
  expect_refused(call(a, a, y), {"fp8_product: b", "f8e5m2", "f8e4m3 beside f8e5m2"});
  expect_refused(call(wide, odd, y), {"fp8_product: a", "24", "a multiple of 16"});
  expect_refused(call(a, few, y), {"fp8_product: b", "8", "a multiple of 16"});
  expect_refused(call(a, b, half), {"fp8_product: y", "got f16"});
  expect_refused(kernels().fp8_wgrad(stream(), a.in(), one.in(), b.in(), one.in(), true, y.inout()),
                 {"fp8_wgrad: dweight", "got bf16", "wanted f32 [4, 16]"});
}

}  // namespace
}  // namespace telar::backend::testing
