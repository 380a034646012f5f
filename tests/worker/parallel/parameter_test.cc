#include "worker/parallel/parameter.h"

#include <gmock/gmock.h>

#include <utility>

namespace telar::parallel {
namespace {

using Element = std::pair<int64_t, int64_t>;  // Row and column of the logical tensor; of a vector the column is 0.

Parameter matrix(int axis, int64_t first, int64_t extent) {
  Parameter made{"x", {5, 7}, Parameter::Init::kZeros, 0};
  made.axis = axis;
  made.first = first;
  made.extent = extent;
  return made;
}

Parameter vector(int64_t first, int64_t extent) {
  Parameter made{"x", {9}, Parameter::Init::kZeros, 0};
  made.first = first;
  made.extent = extent;
  return made;
}

// The elements of a slice in its order, by counting.
std::vector<Element> slice(const Parameter& parameter) {
  std::vector<Element> found;
  const bool flat = parameter.shape.rank() == 1;
  for (int64_t row = 0; row < parameter.shape[0]; ++row) {
    for (int64_t column = 0; column < (flat ? 1 : parameter.shape[1]); ++column) {
      const int64_t along = parameter.axis == 0 ? row : column;
      const bool held =
          parameter.extent < 0 || (along >= parameter.first && along < parameter.first + parameter.extent);
      if (held) found.emplace_back(row, column);
    }
  }
  return found;
}

std::vector<Element> expand(const std::vector<Box>& boxes) {
  std::vector<Element> found;
  for (const Box& box : boxes) {
    const bool flat = box.offset.size() == 1;
    for (int64_t row = 0; row < box.extent[0]; ++row) {
      for (int64_t column = 0; column < (flat ? 1 : box.extent[1]); ++column) {
        found.emplace_back(box.offset[0] + row, flat ? 0 : box.offset[1] + column);
      }
    }
  }
  return found;
}

std::vector<Parameter> all_slices() {
  std::vector<Parameter> all = {matrix(0, 0, -1), vector(0, -1)};
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t length = axis == 0 ? 5 : 7;
    for (int64_t first = 0; first < length; ++first) {
      for (int64_t extent = 1; first + extent <= length; ++extent) all.push_back(matrix(axis, first, extent));
    }
  }
  for (int64_t first = 0; first < 9; ++first) {
    for (int64_t extent = 1; first + extent <= 9; ++extent) all.push_back(vector(first, extent));
  }
  return all;
}

TEST(Parameter, LocalIsTheShapeOfItsSlice) {
  EXPECT_EQ(matrix(0, 0, -1).local(), (engine::Shape{5, 7}));
  EXPECT_EQ(matrix(0, 1, 3).local(), (engine::Shape{3, 7}));
  EXPECT_EQ(matrix(1, 1, 3).local(), (engine::Shape{5, 3}));
  EXPECT_EQ(vector(0, -1).local(), (engine::Shape{9}));
  EXPECT_EQ(vector(2, 4).local(), (engine::Shape{4}));
  for (const Parameter& one : all_slices()) {
    EXPECT_EQ(one.local().elements(), static_cast<int64_t>(slice(one).size()));
  }
}

TEST(Boxes, CoverEveryRangeOfEverySliceInItsOrder) {
  for (const Parameter& one : all_slices()) {
    const std::vector<Element> all = slice(one);
    const auto elements = static_cast<int64_t>(all.size());
    for (int64_t first = 0; first < elements; ++first) {
      for (int64_t count = 1; first + count <= elements; ++count) {
        const std::vector<Box> found = boxes(one, first, count);
        EXPECT_EQ(expand(found), std::vector<Element>(all.begin() + first, all.begin() + first + count))
            << one.shape.to_string() << " axis " << one.axis << " from " << one.first << " extent " << one.extent
            << ": " << count << " from " << first;
        EXPECT_LE(found.size(), one.shape.rank() == 1 ? 1u : 3u);
        int64_t sum = 0;
        for (const Box& box : found) {
          EXPECT_GT(box.elements(), 0);
          EXPECT_EQ(box.offset.size(), static_cast<size_t>(one.shape.rank()));
          sum += box.elements();
        }
        EXPECT_EQ(sum, count);
      }
    }
  }
}

TEST(Boxes, OfNothingAreNone) {
  for (const Parameter& one : all_slices()) EXPECT_THAT(boxes(one, 0, 0), ::testing::IsEmpty());
}

}  // namespace
}  // namespace telar::parallel
