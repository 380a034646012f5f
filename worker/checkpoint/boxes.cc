#include "worker/checkpoint/boxes.h"

#include <algorithm>

namespace telar::checkpoint {
namespace {

std::vector<int64_t> strides_of(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

}  // namespace

std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t first, int64_t count) {
  std::vector<Box> found;
  const std::vector<int64_t> strides = strides_of(shape);
  for (int64_t at = first, end = first + count; at < end;) {
    // The outermost axis of which a whole step begins here and ends in the range; of the innermost, one always does.
    size_t axis = 0;
    while (axis < shape.size() && (at % strides[axis] != 0 || end - at < strides[axis])) ++axis;
    Box box{std::vector<int64_t>(shape.size()), std::vector<int64_t>(shape.begin(), shape.end())};
    int64_t elements = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      box.offset[i] = at / strides[i] % shape[i];
      if (i < axis) box.extent[i] = 1;
      if (i == axis) box.extent[i] = std::min((end - at) / strides[i], shape[i] - box.offset[i]);
      elements *= box.extent[i];
    }
    found.push_back(std::move(box));
    at += elements;
  }
  return found;
}

CommonRuns::CommonRuns(const Box& a, const Box& b) {
  const size_t axes = a.offset.size();
  std::vector<int64_t> offset(axes), extent(axes);
  for (size_t axis = 0; axis < axes; ++axis) {
    offset[axis] = std::max(a.offset[axis], b.offset[axis]);
    extent[axis] = std::min(a.offset[axis] + a.extent[axis], b.offset[axis] + b.extent[axis]) - offset[axis];
    if (extent[axis] <= 0) {
      count_ = 0;
      return;
    }
  }
  // A run takes in the inner axes that both have whole here, and the first before them that one has in part.
  size_t outer = axes;
  while (outer > 0) {
    length_ *= extent[--outer];
    if (extent[outer] != a.extent[outer] || extent[outer] != b.extent[outer]) break;
  }
  outer_.assign(extent.begin(), extent.begin() + static_cast<std::ptrdiff_t>(outer));
  for (const int64_t one : outer_) count_ *= one;
  a_ = place(a, offset);
  b_ = place(b, offset);
}

CommonRuns::Place CommonRuns::place(const Box& box, const std::vector<int64_t>& offset) {
  Place place{strides_of(box.extent), 0};
  for (size_t axis = 0; axis < offset.size(); ++axis) {
    place.first += (offset[axis] - box.offset[axis]) * place.strides[axis];
  }
  return place;
}

int64_t CommonRuns::start(int64_t index, const Place& in) const {
  int64_t position = in.first;
  for (size_t axis = outer_.size(); axis-- > 0;) {
    position += index % outer_[axis] * in.strides[axis];
    index /= outer_[axis];
  }
  return position;
}

}  // namespace telar::checkpoint
