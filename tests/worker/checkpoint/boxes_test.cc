#include "worker/checkpoint/boxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>

namespace telar::checkpoint {
namespace {

// Flattened indices in the tensor of a box's elements, in order.
std::vector<int64_t> elements(const std::vector<int64_t>& shape, const Box& box) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i < box.elements(); ++i) {
    int64_t left = i, index = 0, stride = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      index += (box.offset[axis] + left % box.extent[axis]) * stride;
      left /= box.extent[axis];
      stride *= shape[axis];
    }
    found.push_back(index);
  }
  return found;
}

TEST(Boxes, ARangeIsBoxesInOrder) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7}, {3, 5}, {1, 6}, {6, 1}, {2, 3, 4}, {2, 1, 3, 2}}) {
    int64_t all = 1;
    for (const int64_t extent : shape) all *= extent;
    for (int64_t first = 0; first <= all; ++first) {
      for (int64_t count = 0; first + count <= all; ++count) {
        std::vector<int64_t> found, wanted;
        const auto boxes = boxes_of_range(shape, first, count);
        for (const Box& box : boxes) {
          for (const int64_t element : elements(shape, box)) found.push_back(element);
        }
        for (int64_t i = 0; i < count; ++i) wanted.push_back(first + i);
        ASSERT_EQ(found, wanted) << first << "+" << count;
        ASSERT_LE(boxes.size(), 2 * shape.size());
      }
    }
  }
  EXPECT_EQ(boxes_of_range({}, 0, 1).size(), 1u);  // A scalar.
}

TEST(Boxes, RunsAreWhatTwoBoxesHaveInCommon) {
  std::mt19937_64 random(11);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int64_t apart = 0, joined = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> shape(1 + random() % 3);
    for (int64_t& extent : shape) extent = 1 + below(5);
    const auto draw = [&] {
      Box box;
      for (const int64_t extent : shape) {
        box.offset.push_back(below(extent));
        box.extent.push_back(1 + below(extent - box.offset.back()));
      }
      return box;
    };
    const Box a = draw(), b = draw();
    const auto in_a = elements(shape, a), in_b = elements(shape, b);
    std::vector<int64_t> wanted, found;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(wanted));
    const CommonRuns runs(a, b);
    for (int64_t run = 0; run < runs.count(); ++run) {
      for (int64_t i = 0; i < runs.length(); ++i) {
        const auto at_a = static_cast<size_t>(runs.start_in_a(run) + i),
                   at_b = static_cast<size_t>(runs.start_in_b(run) + i);
        ASSERT_EQ(in_a.at(at_a), in_b.at(at_b));
        found.push_back(in_a[at_a]);
      }
    }
    ASSERT_EQ(found, wanted);
    apart += wanted.empty();
    joined += runs.count() == 1 && runs.length() > shape.back();
  }
  EXPECT_GT(apart, 100);
  EXPECT_GT(joined, 10);
}

}  // namespace
}  // namespace telar::checkpoint
