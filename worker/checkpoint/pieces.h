// Between a checkpoint's logical tensors and what one rank of a layout holds of them. All values are f32.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/parallel/flat_layout.h"

namespace telar::checkpoint {

// The tensors of a model, from the parameter groups of a rank that holds all of it: each kind of each parameter.
std::vector<TensorEntry> tensors_of(std::span<const parallel::ParameterGroup> groups,
                                    std::span<const TensorKind> kinds);

// FAILED_PRECONDITION names the first of `tensors` that the checkpoint has with another shape or dtype, NOT_FOUND one
// that it has not.
absl::Status check_has(const CheckpointReader& reader, std::span<const TensorEntry> tensors);

// What rank `holder` of `holders` that all hold `pieces` is to save of them: of the primary parameters, its share by
// elements, cut at whole rows. `pieces` in the order of FlatLayout::pieces().
std::vector<parallel::Piece> share_of(const parallel::FlatLayout& layout, std::span<const parallel::Piece> pieces,
                                      int holders, int holder);

// A large piece is stored as several chunks of about this, so that whoever needs a part of it reads little more.
inline constexpr int64_t kChunkBytes = int64_t{64} << 20;

// Copies the elements of a piece to or from the host.
using ReadPiece = std::function<absl::Status(const parallel::Piece& piece, std::span<float> out)>;
using WritePiece = std::function<absl::Status(const parallel::Piece& piece, std::span<const float> values)>;

// Adds the pieces to what `writer` writes. `layout` must outlive its publish(), which calls `read` with parts of them.
absl::Status add_pieces(CheckpointWriter& writer, const parallel::FlatLayout& layout,
                        std::span<const parallel::Piece> pieces, TensorKind kind, const ReadPiece& read,
                        int64_t chunk_bytes = kChunkBytes);
// Reads the pieces, one after another, from a checkpoint of any layout or from other people's weights.
absl::Status load_pieces(const WeightSource& source, const parallel::FlatLayout& layout,
                         std::span<const parallel::Piece> pieces, TensorKind kind, const WritePiece& write);

}  // namespace telar::checkpoint
