#include "worker/convert/emit.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/convert/values.h"

namespace telar::convert {
namespace {

using parallel::Box;

constexpr size_t kPieceElements = size_t{1} << 20;

class Emitter {
 public:
  Emitter(const checkpoint::WeightSource& source, const StoredTensor& tensor, backend::DType dtype, const Sink& sink)
      : source_(source), tensor_(tensor), dtype_(dtype), sink_(sink) {}

  absl::Status run(int64_t band_elements) {
    const int64_t rows = tensor_.shape[0], columns = tensor_.columns();
    if (tensor_.elements() == 0) return absl::OkStatus();
    const int64_t step = std::max<int64_t>(1, band_elements / columns);
    for (int64_t top = 0; top < rows;) {
      const int64_t bottom = band_end(top, std::min(top + step, rows));
      values_.assign(static_cast<size_t>((bottom - top) * columns), 0.0f);
      for (const Part& part : tensor_.parts) {
        const auto status = tensor_.transposed ? turn(part, top, bottom) : copy(part, top, bottom);
        if (!status.ok()) return status;
      }
      if (auto status = write(); !status.ok()) return status;
      top = bottom;
    }
    return absl::OkStatus();
  }

 private:
  // Before a part that fits into a band, rather than in the middle of it.
  int64_t band_end(int64_t top, int64_t bottom) const {
    if (tensor_.transposed) return bottom;
    for (const Part& part : tensor_.parts) {
      const int64_t end = part.first + part.shape[0];
      if (part.first > top && part.first < bottom && end > bottom) return part.first;
    }
    return bottom;
  }

  absl::Status read(const Part& part, Box box, std::span<float> out) const {
    return source_.read_values(part.name, checkpoint::TensorKind::kMaster, std::span(&box, 1), out);
  }

  // Rows [top, bottom) of the stored tensor, as far as they are the part's.
  absl::Status copy(const Part& part, int64_t top, int64_t bottom) {
    const int64_t columns = tensor_.columns();
    const int64_t from = std::max(top, part.first), to = std::min(bottom, part.first + part.shape[0]);
    if (from >= to) return absl::OkStatus();
    Box box{std::vector<int64_t>(part.shape.size(), 0), part.shape};
    box.offset[0] = from - part.first;
    box.extent[0] = to - from;
    return read(part, std::move(box),
                std::span(values_).subspan(static_cast<size_t>((from - top) * columns),
                                           static_cast<size_t>((to - from) * columns)));
  }

  // Its columns [top, bottom), which are rows of a transposed tensor.
  absl::Status turn(const Part& part, int64_t top, int64_t bottom) {
    const int64_t rows = part.shape[0], columns = bottom - top;
    upright_.resize(static_cast<size_t>(rows * columns));
    const auto status = read(part, Box{{0, top}, {rows, columns}}, upright_);
    if (!status.ok()) return status;
    transpose(upright_, rows, columns, values_.data() + part.first, tensor_.columns());
    return absl::OkStatus();
  }

  absl::Status write() {
    const size_t element = backend::size_of(dtype_);
    for (size_t at = 0; at < values_.size(); at += kPieceElements) {
      const auto piece = std::span<const float>(values_).subspan(at, std::min(kPieceElements, values_.size() - at));
      bytes_.resize(piece.size() * element);
      if (!narrow(piece, dtype_, bytes_)) {
        return absl::FailedPreconditionError(absl::StrCat(
            source_.path(), ": ", tensor_.name, ": a value is too large for ", std::string(backend::name_of(dtype_))));
      }
      if (auto status = sink_(bytes_); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const checkpoint::WeightSource& source_;
  const StoredTensor& tensor_;
  const backend::DType dtype_;
  const Sink& sink_;
  std::vector<float> values_;   // Of a band of stored rows.
  std::vector<float> upright_;  // Of a part of a transposed tensor.
  std::vector<std::byte> bytes_;
};

}  // namespace

absl::Status emit(const checkpoint::WeightSource& source, const StoredTensor& tensor, backend::DType dtype,
                  const Sink& sink, int64_t band_elements) {
  return Emitter(source, tensor, dtype, sink).run(band_elements);
}

}  // namespace telar::convert
