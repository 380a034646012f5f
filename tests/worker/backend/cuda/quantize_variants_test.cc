// However the kernels that quantise go over their tiles, they write the same bytes: fp8_test and fp8_blocks_test have
// those of one way against plain loops.
#include <cstdlib>

#include "tests/worker/backend/kernel_test.h"
#include "worker/backend/fp8.h"

namespace telar::backend::testing {
namespace {

// By each variant in turn; what is not there is empty.
struct Written {
  std::vector<uint8_t> rows, columns;
  Values rows_inverse, columns_inverse, seen;
  bool operator==(const Written&) const = default;
};

class QuantizeVariantsTest : public KernelTest {
 protected:
  static constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 8},   {16, 64},   {130, 256},
                                                            {48, 72}, {256, 264}, {144, 520}};
  static constexpr std::pair<int64_t, int64_t> kLarge = {3088, 4104};  // More tiles than a device holds blocks.
  struct Want {
    bool rows, columns;
  };
  static constexpr Want kWanted[] = {{true, true}, {true, false}, {false, true}};

  void TearDown() override { unsetenv("TELAR_CANDIDATES"); }
  static void choose(const char* candidate) { setenv("TELAR_CANDIDATES", candidate, 1); }

  Written quantized(Tensor& x, const Shape& shape, Want want, DType dtype, bool sees) {
    Tensor rows = filled(dtype, shape, 3), columns = filled(dtype, {shape[1], shape[0]}, 3);
    Tensor amax = filled(DType::kF32, {1}, 0.75), inverse = filled(DType::kF32, {1}, -9),
           seen = filled(DType::kF32, {1}, 0);
    ok(kernels().quantize(stream(), x.in(), amax.in(), want.rows ? rows.out() : Out(),
                          want.columns ? columns.out() : Out(), inverse.out(), sees ? seen.inout() : InOut()));
    return {rows.bytes(), columns.bytes(), inverse.values(), {}, seen.values()};
  }

  Written quantized_blocks(Tensor& x, const Shape& shape, Want want, DType dtype, bool square) {
    const Fp8Scaled scaled = square ? Fp8Scaled::kSquares : Fp8Scaled::kRuns;
    Tensor rows = filled(dtype, shape, 3), columns = filled(dtype, {shape[1], shape[0]}, 3);
    Tensor rows_inverse = filled(DType::kF32, fp8_inverse_shape(scaled, shape[0], shape[1]), -9);
    Tensor columns_inverse = filled(DType::kF32, fp8_inverse_shape(scaled, shape[1], shape[0]), -9);
    ok(kernels().quantize_blocks(stream(), x.in(), square, want.rows ? rows.out() : Out(),
                                 want.rows ? rows_inverse.out() : Out(), want.columns ? columns.out() : Out(),
                                 want.columns ? columns_inverse.out() : Out()));
    return {rows.bytes(), columns.bytes(), rows_inverse.values(), columns_inverse.values(), {}};
  }

  void expect_alike(Tensor& x, const Shape& shape, Want want, DType dtype) {
    const std::string what = shape.to_string() + (want.rows ? " rows" : "") + (want.columns ? " columns" : "");
    for (const bool option : {false, true}) {
      expect_alike(what, [&] { return quantized(x, shape, want, dtype, /*sees=*/option); });
      expect_alike(what + " in blocks", [&] { return quantized_blocks(x, shape, want, dtype, /*square=*/option); });
    }
  }

  // `write` gives what the candidate that is chosen writes.
  template <typename Write>
  static void expect_alike(const std::string& what, const Write& write) {
    choose("");
    const Written tiles = write();
    for (const char* candidate : {"quantize_narrow", "quantize_ahead"}) {
      choose(candidate);
      EXPECT_TRUE(write() == tiles) << candidate << " " << what;
    }
  }
};
TELAR_FLOAT_TYPES(QuantizeVariantsTest);

TEST_P(QuantizeVariantsTest, WriteTheSameBytes) {
  for (const auto& [height, width] : kShapes) {
    const Shape shape{height, width};
    Tensor x = tensor(GetParam(), shape, random(height * width));
    for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
      for (const Want want : kWanted) expect_alike(x, shape, want, dtype);
    }
  }
}

TEST_P(QuantizeVariantsTest, WriteTheSameBytesOfManyTiles) {
  const Shape shape{kLarge.first, kLarge.second};
  Tensor x = tensor(GetParam(), shape, random(shape.elements()));
  expect_alike(x, shape, {true, true}, DType::kF8E4M3);
}

}  // namespace
}  // namespace telar::backend::testing
