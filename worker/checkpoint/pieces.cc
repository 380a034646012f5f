#include "worker/checkpoint/pieces.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace telar::checkpoint {
namespace {

using parallel::FlatLayout;
using parallel::Parameter;
using parallel::Piece;
using parallel::Range;

std::vector<int64_t> extents(const engine::Shape& shape) {
  std::vector<int64_t> dims;
  for (int axis = 0; axis < shape.rank(); ++axis) dims.push_back(shape[axis]);
  return dims;
}

const Parameter& parameter_of(const FlatLayout& layout, const Piece& piece) {
  return layout.groups()[piece.group].parts[piece.part];
}

// Elements [first, first + count) of a piece.
Piece part_of(const Piece& piece, int64_t first, int64_t count) {
  Piece part = piece;
  part.slice = {piece.slice.first + first, count};
  part.first = piece.first + first;
  return part;
}

int64_t row_elements(const Parameter& parameter) { return parameter.shape.rank() == 2 ? parameter.local()[1] : 1; }

// Of a box of whole rows, those from `row` on that a chunk takes.
Box rows_of(const Box& box, int64_t row, int64_t rows) {
  Box part = box;
  part.offset[0] += row;
  part.extent[0] = std::min(rows, box.extent[0] - row);
  return part;
}

}  // namespace

std::vector<TensorEntry> tensors_of(std::span<const parallel::ParameterGroup> groups,
                                    std::span<const TensorKind> kinds) {
  std::vector<TensorEntry> tensors;
  for (const TensorKind kind : kinds) {
    for (const parallel::ParameterGroup& group : groups) {
      for (const Parameter& parameter : group.parts) {
        tensors.push_back({.name = parameter.name, .kind = kind, .shape = extents(parameter.shape)});
      }
    }
  }
  return tensors;
}

absl::Status check_has(const CheckpointReader& reader, std::span<const TensorEntry> tensors) {
  for (const TensorEntry& wanted : tensors) {
    const std::string who = absl::StrCat("checkpoint ", reader.path(), ": ", name_of(wanted.kind), " ", wanted.name);
    const TensorEntry* stored = reader.manifest().find(wanted.name, wanted.kind);
    if (stored == nullptr) return absl::NotFoundError(absl::StrCat(who, " is not in it"));
    const auto text = [](const TensorEntry& tensor) {
      return absl::StrCat(dtype_name(tensor.dtype), " [", absl::StrJoin(tensor.shape, ", "), "]");
    };
    if (stored->shape != wanted.shape || stored->dtype != wanted.dtype) {
      return absl::FailedPreconditionError(absl::StrCat(who, " is ", text(*stored), ", the model's is ", text(wanted)));
    }
  }
  return absl::OkStatus();
}

std::vector<Piece> share_of(const FlatLayout& layout, std::span<const Piece> pieces, int holders, int holder) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += parameter_of(layout, piece).primary ? piece.slice.count : 0;
  const int64_t begin = total * holder / holders, end = total * (holder + 1) / holders;
  std::vector<Piece> share;
  int64_t at = 0;  // Primary elements before the piece.
  for (const Piece& piece : pieces) {
    const Parameter& parameter = parameter_of(layout, piece);
    if (!parameter.primary) continue;
    // Where a border of shares cuts the piece: at the last row that begins before it.
    const auto cut = [&](int64_t border) {
      if (border - at >= piece.slice.count) return piece.slice.count;
      const int64_t columns = row_elements(parameter);
      const int64_t row = (piece.slice.first + std::max<int64_t>(0, border - at)) / columns * columns;
      return std::max<int64_t>(0, row - piece.slice.first);
    };
    const int64_t from = cut(begin), to = cut(end);
    if (from < to) share.push_back(part_of(piece, from, to - from));
    at += piece.slice.count;
  }
  return share;
}

absl::Status add_pieces(CheckpointWriter& writer, const FlatLayout& layout, std::span<const Piece> pieces,
                        TensorKind kind, const ReadPiece& read, int64_t chunk_bytes) {
  constexpr int64_t kElement = sizeof(float);
  for (const Piece& piece : pieces) {
    const Parameter& parameter = parameter_of(layout, piece);
    int64_t first = 0;  // Element of the piece.
    for (const Box& box : boxes(parameter, piece.slice.first, piece.slice.count)) {
      const int64_t row = box.elements() / box.extent[0];
      const int64_t rows = std::max<int64_t>(1, chunk_bytes / (row * kElement));
      for (int64_t done = 0; done < box.extent[0]; done += rows) {
        const Box chunk = rows_of(box, done, rows);
        TensorPart part;
        part.name = parameter.name;
        part.kind = kind;
        part.shape = extents(parameter.shape);
        part.offset = chunk.offset;
        part.extent = chunk.extent;
        part.read = [piece, first, read](uint64_t first_byte, std::span<std::byte> out) {
          const int64_t at = first + static_cast<int64_t>(first_byte) / kElement;
          const std::span<float> values(reinterpret_cast<float*>(out.data()), out.size() / kElement);
          return read(part_of(piece, at, static_cast<int64_t>(values.size())), values);
        };
        if (auto status = writer.add(std::move(part)); !status.ok()) return status;
        first += chunk.elements();
      }
    }
  }
  return absl::OkStatus();
}

absl::Status load_pieces(const WeightSource& source, const FlatLayout& layout, std::span<const Piece> pieces,
                         TensorKind kind, const WritePiece& write) {
  std::vector<float> values;
  for (const Piece& piece : pieces) {
    const Parameter& parameter = parameter_of(layout, piece);
    values.resize(static_cast<size_t>(piece.slice.count));
    const auto wanted = boxes(parameter, piece.slice.first, piece.slice.count);
    auto status = source.read_values(parameter.name, kind, wanted, values);
    if (status.ok()) status = write(piece, values);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace telar::checkpoint
