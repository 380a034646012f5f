// Boxes of a tensor, as elements that lie together in a row-major store.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/parallel/parameter.h"

namespace telar::checkpoint {

using parallel::Box;

// Elements [first, first + count) of the flattened tensor: boxes whose elements follow each other in that order.
std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t first, int64_t count);

// What two boxes of one tensor have in common, as runs of equal length that lie together in both; in ascending order.
class CommonRuns {
 public:
  CommonRuns(const Box& a, const Box& b);
  int64_t count() const { return count_; }    // 0: nothing in common.
  int64_t length() const { return length_; }  // Elements of each.
  // Where run `index` starts in the flattened box.
  int64_t start_in_a(int64_t index) const { return start(index, a_); }
  int64_t start_in_b(int64_t index) const { return start(index, b_); }

 private:
  struct Place {
    std::vector<int64_t> strides;
    int64_t first = 0;  // Where the first run starts.
  };
  static Place place(const Box& box, const std::vector<int64_t>& offset);
  int64_t start(int64_t index, const Place& in) const;

  std::vector<int64_t> outer_;  // Extents of the axes that runs are counted over.
  int64_t count_ = 1;
  int64_t length_ = 1;
  Place a_, b_;
};

}  // namespace telar::checkpoint
