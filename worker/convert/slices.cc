#include "worker/convert/slices.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/convert/values.h"

namespace telar::convert {
namespace {

using parallel::Box;

constexpr int64_t kBandBytes = int64_t{4} << 20;

// [top, bottom) x [left, right) of a matrix.
struct Rectangle {
  int64_t top = 0, left = 0, bottom = 0, right = 0;
  int64_t rows() const { return bottom - top; }
  int64_t columns() const { return right - left; }
  bool empty() const { return rows() <= 0 || columns() <= 0; }
};

// A vector is a matrix of one column.
Rectangle rectangle_of(const Box& box) {
  if (box.offset.size() == 1) return {box.offset[0], 0, box.offset[0] + box.extent[0], 1};
  return {box.offset[0], box.offset[1], box.offset[0] + box.extent[0], box.offset[1] + box.extent[1]};
}

Rectangle common(const Rectangle& a, const Rectangle& b) {
  return {std::max(a.top, b.top), std::max(a.left, b.left), std::min(a.bottom, b.bottom), std::min(a.right, b.right)};
}

Rectangle turned(const Rectangle& one) { return {one.left, one.top, one.right, one.bottom}; }

absl::Status check(const Part& part, std::span<const Box> boxes, size_t values) {
  uint64_t elements = 0;
  for (const Box& box : boxes) {
    bool inside = box.offset.size() == part.shape.size() && box.extent.size() == part.shape.size();
    for (size_t axis = 0; inside && axis < part.shape.size(); ++axis) {
      inside = box.offset[axis] >= 0 && box.extent[axis] >= 0 && box.offset[axis] <= part.shape[axis] &&
               box.extent[axis] <= part.shape[axis] - box.offset[axis];
    }
    if (!inside) return absl::InvalidArgumentError("asked for a box outside its shape");
    elements += static_cast<uint64_t>(box.elements());
  }
  if (elements == values) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("asked for ", elements, " elements into ", values));
}

// Reads rectangles of a stored tensor, in its own rows and columns.
class Stored {
 public:
  Stored(const StoredTensor& tensor, backend::DType dtype, const ReadBytes& read)
      : width_(tensor.columns()), element_(static_cast<int64_t>(backend::size_of(dtype))), dtype_(dtype), read_(read) {}

  int64_t element() const { return element_; }
  // Row-major into `values`.
  absl::Status get(const Rectangle& band, std::span<float> values) {
    const bool whole_rows = band.columns() == width_;
    const int64_t reads = whole_rows ? 1 : band.rows();
    const int64_t run = whole_rows ? band.rows() * width_ : band.columns();
    bytes_.resize(static_cast<size_t>(band.rows() * band.columns() * element_));
    for (int64_t i = 0; i < reads; ++i) {
      const int64_t first = (band.top + i) * width_ + band.left;
      const auto into =
          std::span(bytes_).subspan(static_cast<size_t>(i * run * element_), static_cast<size_t>(run * element_));
      if (auto status = read_(static_cast<uint64_t>(first * element_), into); !status.ok()) return status;
    }
    widen(bytes_, dtype_, values);
    return absl::OkStatus();
  }

 private:
  const int64_t width_, element_;
  const backend::DType dtype_;
  const ReadBytes& read_;
  std::vector<std::byte> bytes_;
};

// Copies what a band has of a box to its place in the box; both in logical rows and columns. `values` is row-major.
void place(const Rectangle& band, std::span<const float> values, const Rectangle& box, float* out) {
  const Rectangle both = common(band, box);
  if (both.empty()) return;
  const auto from = [&](int64_t row) {
    return values.data() + (row - band.top) * band.columns() + both.left - band.left;
  };
  const auto to = [&](int64_t row) { return out + (row - box.top) * box.columns() + both.left - box.left; };
  if (both.columns() == band.columns() && both.columns() == box.columns()) {
    std::copy_n(from(both.top), both.rows() * both.columns(), to(both.top));
    return;
  }
  for (int64_t row = both.top; row < both.bottom; ++row) std::copy_n(from(row), both.columns(), to(row));
}

}  // namespace

absl::Status read_boxes(const StoredTensor& tensor, const Part& part, backend::DType dtype, const ReadBytes& read,
                        std::span<const Box> boxes, std::span<float> out) {
  if (auto status = check(part, boxes, out.size()); !status.ok() || out.empty()) return status;
  Rectangle wanted{INT64_MAX, INT64_MAX, 0, 0};
  for (const Box& box : boxes) {
    const Rectangle one = rectangle_of(box);
    if (one.empty()) continue;
    wanted = {std::min(wanted.top, one.top), std::min(wanted.left, one.left), std::max(wanted.bottom, one.bottom),
              std::max(wanted.right, one.right)};
  }
  // From here on in bands of stored rows; those of a transposed tensor are our columns.
  Stored stored(tensor, dtype, read);
  const Rectangle held = tensor.transposed ? turned(wanted) : wanted;
  const int64_t rows = std::max<int64_t>(1, kBandBytes / (held.columns() * stored.element()));
  std::vector<float> values(static_cast<size_t>(std::min(rows, held.rows()) * held.columns()));
  std::vector<float> upright(tensor.transposed ? values.size() : 0);
  for (int64_t top = held.top; top < held.bottom; top += rows) {
    const Rectangle band{top, held.left, std::min(top + rows, held.bottom), held.right};
    const auto size = static_cast<size_t>(band.rows() * band.columns());
    Rectangle in_file = band;
    (tensor.transposed ? in_file.left : in_file.top) += part.first;
    (tensor.transposed ? in_file.right : in_file.bottom) += part.first;
    std::span<float> got = std::span(values).first(size);
    if (auto status = stored.get(in_file, got); !status.ok()) return status;
    if (tensor.transposed) {
      transpose(got, band.rows(), band.columns(), upright.data(), band.rows());
      got = std::span(upright).first(size);
    }
    const Rectangle logical = tensor.transposed ? turned(band) : band;
    float* box_out = out.data();
    for (const Box& box : boxes) {
      place(logical, got, rectangle_of(box), box_out);
      box_out += box.elements();
    }
  }
  return absl::OkStatus();
}

}  // namespace telar::convert
