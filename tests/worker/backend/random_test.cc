#include <cmath>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

class RandomNormalTest : public KernelTest {
 protected:
  Values draw(DType dtype, RandomKey key, int64_t n, float stddev = 1) {
    Tensor x = filled(dtype, {n}, -99);
    ok(kernels().random_normal(stream(), key, stddev, x.out()));
    return x.values();
  }
};
TELAR_FLOAT_TYPES(RandomNormalTest);

TEST_P(RandomNormalTest, ASliceHoldsTheSameValuesAsTheWhole) {
  const RandomKey key{.seed = 0x123456789abcdef0, .purpose = 3, .tensor = 17, .first = 0};
  const Values whole = draw(GetParam(), key, 9000);
  for (int64_t first : {0, 1, 2, 3, 4, 5, 4095, 4097, 8999}) {
    RandomKey slice = key;
    slice.first = static_cast<uint64_t>(first);
    const int64_t n = std::min<int64_t>(9000 - first, 777);
    EXPECT_EQ(draw(GetParam(), slice, n), Values(whole.begin() + first, whole.begin() + first + n)) << first;
  }
}

// Columns of a matrix, and any part of them.
TEST_P(RandomNormalTest, ABoxHoldsTheSameValuesAsTheWhole) {
  for (int64_t cols : {7, 29, 64}) {
    const int64_t rows = 37, start = 6 * cols + 3;  // The matrix is itself the end of a longer tensor.
    const RandomKey key{.seed = 0x123456789abcdef0, .purpose = 3, .tensor = 17};
    const Values whole = draw(GetParam(), key, start + rows * cols);
    for (int64_t width : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{6}, cols}) {
      const int64_t left = pick(0, cols - width);
      Values want;
      for (int64_t r = 0; r < rows; ++r) {
        const auto at = whole.begin() + start + r * cols + left;
        want.insert(want.end(), at, at + width);
      }
      RandomKey box = key;
      box.first = static_cast<uint64_t>(start + left);
      box.row = static_cast<uint64_t>(width);
      box.stride = static_cast<uint64_t>(cols);
      EXPECT_EQ(draw(GetParam(), box, rows * width), want) << left << " + " << width << " of " << cols;
      for (int64_t offset : {int64_t{1}, width - 1, width, 2 * width + width / 2, rows * width - 1}) {
        box.offset = static_cast<uint64_t>(offset);
        const int64_t n = pick(1, rows * width - offset);
        EXPECT_EQ(draw(GetParam(), box, n), Values(want.begin() + offset, want.begin() + offset + n))
            << left << " + " << width << " of " << cols << " from " << offset;
      }
    }
    RandomKey rest = key;  // Without rows, an offset is as good as a later start.
    rest.first = 5;
    rest.offset = static_cast<uint64_t>(cols);
    EXPECT_EQ(draw(GetParam(), rest, 20), Values(whole.begin() + 5 + cols, whole.begin() + 25 + cols));
  }
}

TEST_F(RandomNormalTest, SlicesPastFourBillion) {
  const RandomKey far{.seed = 1, .purpose = 0, .tensor = 0, .first = (uint64_t{1} << 34) - 2};
  RandomKey later = far;
  later.first += 2;  // The first element whose block number needs the counter's second word.
  const Values values = draw(DType::kF32, far, 8);
  EXPECT_EQ(draw(DType::kF32, later, 6), Values(values.begin() + 2, values.end()));
  RandomKey rows = far;  // Two of them, the second one past it.
  rows.row = 2;
  rows.stride = 4;
  EXPECT_EQ(draw(DType::kF32, rows, 4), (Values{values[0], values[1], values[4], values[5]}));
  RandomKey start{.seed = 1, .purpose = 0, .tensor = 0, .first = 0};
  EXPECT_NE(draw(DType::kF32, start, 6), draw(DType::kF32, later, 6));
}

TEST_P(RandomNormalTest, MomentsAreThoseOfANormal) {
  const Values x = draw(GetParam(), {.seed = 7, .purpose = 1, .tensor = 2, .first = 5}, 400001, 0.5f);
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    mean += x[i];
    square += x[i] * x[i];
    fourth += x[i] * x[i] * x[i] * x[i];
    if (i > 0) neighbours += x[i] * x[i - 1];
  }
  const double n = static_cast<double>(x.size());
  EXPECT_NEAR(mean / n, 0, 0.004);               // 5 sigma: 0.5 / sqrt(n) = 0.0008
  EXPECT_NEAR(square / n, 0.25, 0.003);          // 5 sigma
  EXPECT_NEAR(fourth / n / 0.0625, 3, 0.1);      // 6 sigma
  EXPECT_NEAR(neighbours / n / 0.25, 0, 0.008);  // 5 sigma
}

TEST_F(RandomNormalTest, EveryPartOfTheKeyCounts) {
  const RandomKey key{.seed = 1, .purpose = 1, .tensor = 1, .first = 0};
  const Values base = draw(DType::kF32, key, 64);
  RandomKey other = key;
  other.seed = (uint64_t{1} << 32) + 1;
  EXPECT_NE(draw(DType::kF32, other, 64), base);
  other = key;
  other.purpose = 2;
  EXPECT_NE(draw(DType::kF32, other, 64), base);
  other = key;
  other.tensor = 2;
  EXPECT_NE(draw(DType::kF32, other, 64), base);
}

TEST_F(RandomNormalTest, Refusals) {
  Tensor x = filled(DType::kF32, {4}, 0), ints = filled(DType::kI32, {4}, 0);
  expect_refused(kernels().random_normal(stream(), {}, -1, x.out()), {"random_normal: stddev", "got -1"});
  expect_refused(kernels().random_normal(stream(), {}, 1, ints.out()), {"random_normal: x", "i32"});
  expect_refused(kernels().random_normal(stream(), {.row = 4, .stride = 3}, 1, x.out()),
                 {"random_normal: key.stride", "got 3", "at least key.row = 4"});
}

}  // namespace
}  // namespace telar::backend::testing
