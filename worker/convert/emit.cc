#include "worker/convert/emit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/convert/values.h"

namespace telar::convert {
namespace {

using parallel::Box;

constexpr size_t kPieceElements = size_t{1} << 20;

// Before a part that fits into a band, rather than in the middle of it.
int64_t band_end(const StoredTensor& tensor, int64_t top, int64_t bottom) {
  if (tensor.transposed) return bottom;
  for (const Part& part : tensor.parts) {
    const int64_t end = part.first + part.shape[0];
    if (part.first > top && part.first < bottom && end > bottom) return part.first;
  }
  return bottom;
}

bool has_padding(const StoredTensor& tensor) {
  int64_t rows = 0;
  for (const Part& part : tensor.parts) rows += part.shape[0];
  return rows < (tensor.transposed ? tensor.columns() : tensor.shape[0]);
}

}  // namespace

absl::Status Emitter::emit(const StoredTensor& tensor, const Sink& sink) {
  if (tensor.elements() == 0) return absl::OkStatus();
  const int64_t rows = tensor.shape[0], columns = tensor.columns();
  const int64_t step = std::max<int64_t>(1, band_elements_ / columns);
  const bool padded = has_padding(tensor);
  for (int64_t top = 0; top < rows;) {
    const int64_t bottom = band_end(tensor, top, std::min(top + step, rows));
    values_.resize(static_cast<size_t>((bottom - top) * columns));
    if (padded) std::fill(values_.begin(), values_.end(), 0.0f);
    for (const Part& part : tensor.parts) {
      auto status = tensor.transposed ? turn(tensor, part, top, bottom) : copy(tensor, part, top, bottom);
      if (!status.ok()) return status;
    }
    if (auto status = write(tensor, sink); !status.ok()) return status;
    top = bottom;
  }
  return absl::OkStatus();
}

// Rows [top, bottom) of the stored tensor, as far as they are the part's.
absl::Status Emitter::copy(const StoredTensor& tensor, const Part& part, int64_t top, int64_t bottom) {
  const int64_t columns = tensor.columns();
  const int64_t from = std::max(top, part.first), to = std::min(bottom, part.first + part.shape[0]);
  if (from >= to) return absl::OkStatus();
  Box box{std::vector<int64_t>(part.shape.size(), 0), part.shape};
  box.offset[0] = from - part.first;
  box.extent[0] = to - from;
  const auto out = std::span(values_).subspan(static_cast<size_t>((from - top) * columns),
                                              static_cast<size_t>((to - from) * columns));
  return source_.read_values(part.name, checkpoint::TensorKind::kMaster, std::span(&box, 1), out);
}

// The part's columns [top, bottom), which are rows of a transposed tensor.
absl::Status Emitter::turn(const StoredTensor& tensor, const Part& part, int64_t top, int64_t bottom) {
  const int64_t rows = part.shape[0], columns = bottom - top;
  upright_.resize(static_cast<size_t>(rows * columns));
  const Box box{{0, top}, {rows, columns}};
  auto status = source_.read_values(part.name, checkpoint::TensorKind::kMaster, std::span(&box, 1), upright_);
  if (!status.ok()) return status;
  transpose(upright_, rows, columns, values_.data() + part.first, tensor.columns());
  return absl::OkStatus();
}

absl::Status Emitter::write(const StoredTensor& tensor, const Sink& sink) {
  for (size_t at = 0; at < values_.size(); at += kPieceElements) {
    const auto piece = std::span<const float>(values_).subspan(at, std::min(kPieceElements, values_.size() - at));
    bytes_.resize(piece.size() * backend::size_of(dtype_));
    if (!narrow(piece, dtype_, bytes_)) {
      return absl::FailedPreconditionError(absl::StrCat(
          source_.path(), ": ", tensor.name, ": a value is too large for ", std::string(backend::name_of(dtype_))));
    }
    if (auto status = sink(bytes_); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace telar::convert
