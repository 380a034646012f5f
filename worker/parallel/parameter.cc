#include "worker/parallel/parameter.h"

#include <algorithm>

namespace telar::parallel {

engine::Shape Parameter::local() const {
  if (extent < 0) return shape;
  if (shape.rank() == 1) return {extent};
  return axis == 0 ? engine::Shape{extent, shape[1]} : engine::Shape{shape[0], extent};
}

int64_t Box::elements() const {
  int64_t elements = 1;
  for (const int64_t e : extent) elements *= e;
  return elements;
}

std::vector<Box> boxes(const Parameter& parameter, int64_t first, int64_t count) {
  std::vector<Box> found;
  if (count == 0) return found;
  const int64_t cut = parameter.extent < 0 ? 0 : parameter.first;
  if (parameter.shape.rank() == 1) return {{{cut + first}, {count}}};
  const int64_t row_offset = parameter.axis == 0 ? cut : 0, column_offset = parameter.axis == 1 ? cut : 0;
  const int64_t columns = parameter.local()[1];
  const auto add = [&](int64_t row, int64_t rows, int64_t column, int64_t width) {
    found.push_back({{row_offset + row, column_offset + column}, {rows, width}});
  };
  int64_t at = first;
  const int64_t end = first + count;
  if (at % columns != 0) {  // The rest of a row that began before.
    const int64_t width = std::min(columns - at % columns, end - at);
    add(at / columns, 1, at % columns, width);
    at += width;
  }
  if (const int64_t rows = (end - at) / columns; rows > 0) {
    add(at / columns, rows, 0, columns);
    at += rows * columns;
  }
  if (at < end) add(at / columns, 1, 0, end - at);
  return found;
}

}  // namespace telar::parallel
