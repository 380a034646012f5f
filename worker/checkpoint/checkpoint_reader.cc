#include "worker/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

constexpr uint64_t kReadPiece = uint64_t{4}
                                << 20;  // Stays in cache between the read and the CRC; a multiple of any dtype.
constexpr uint64_t kMostManifestBytes = uint64_t{1} << 30;

std::string label(const TensorEntry& tensor) { return absl::StrCat(name_of(tensor.kind), " ", tensor.name); }

int64_t elements_of(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::open(FileSystem& files,
                                                                         const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kManifestName);
  const auto text = read_file(files, path, kMostManifestBytes);
  if (!text.ok()) return text.status();
  auto manifest = parse_manifest(*text, path);
  if (!manifest.ok()) return manifest.status();
  const auto step = step_of(directory.substr(directory.find_last_of('/') + 1));
  if (step && *step != manifest->step) {
    return absl::DataLossError(absl::StrCat("manifest ", path, ": is of step ", manifest->step));
  }
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(files, directory));
  reader->manifest_ = *std::move(manifest);
  for (const FileEntry& file : reader->manifest_.files) {
    if (auto status = reader->open_file(file); !status.ok()) return status;
  }
  for (const TensorEntry& tensor : reader->manifest_.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      if (auto status = reader->check_chunk(tensor, chunk); !status.ok()) return status;
    }
  }
  return reader;
}

absl::Status CheckpointReader::open_file(const FileEntry& file) {
  const std::string path = absl::StrCat(path_, "/", file.name);
  const auto raw = files_.open(path);
  if (!raw.ok()) return raw.status();
  if ((*raw)->size() != file.bytes) {
    return absl::DataLossError(
        absl::StrCat("checkpoint file ", path, ": ", (*raw)->size(), " bytes, the manifest says ", file.bytes));
  }
  auto shard = SafetensorsFile::open(files_, path);
  if (!shard.ok()) return shard.status();
  shards_[file.name] = *std::move(shard);
  return absl::OkStatus();
}

absl::Status CheckpointReader::check_chunk(const TensorEntry& tensor, const Chunk& chunk) const {
  const SafetensorsFile& shard = *shards_.at(chunk.file);
  const TensorInfo* stored = shard.find(chunk.key);
  if (stored == nullptr) {
    return absl::DataLossError(
        absl::StrCat("checkpoint file ", shard.path(), ": no ", chunk.key, " for ", label(tensor)));
  }
  if (stored->dtype != dtype_name(tensor.dtype) || stored->shape != chunk.shape) {
    return absl::DataLossError(absl::StrCat("checkpoint file ", shard.path(), ": ", chunk.key, " for ", label(tensor),
                                            " has a dtype or shape that the manifest does not give"));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::verify() const {
  for (const FileEntry& file : manifest_.files) {
    if (auto status = verify_file(file); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::verify_file(const FileEntry& file) const {
  const std::string path = absl::StrCat(path_, "/", file.name);
  const auto raw = files_.open(path);
  if (!raw.ok()) return raw.status();
  std::vector<std::byte> piece(std::min(kReadPiece, file.bytes));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < file.bytes; at += piece.size()) {
    const auto part = std::span(piece).first(std::min<uint64_t>(piece.size(), file.bytes - at));
    if (auto status = (*raw)->read(at, part); !status.ok()) return status;
    crc = crc32c(part, crc);
  }
  if (crc == file.crc32c) return absl::OkStatus();
  for (const TensorEntry& tensor : manifest_.tensors) {  // Whose bytes are they?
    for (const Chunk& chunk : tensor.chunks) {
      if (chunk.file != file.name) continue;
      if (auto status = read_chunk(tensor, chunk, {}, {}); !status.ok()) return status;
    }
  }
  return absl::DataLossError(absl::StrCat("checkpoint file ", path, ": CRC32C ", crc_text(crc), ", the manifest says ",
                                          crc_text(file.crc32c), "; no tensor is hurt, so its header is"));
}

absl::StatusOr<const TensorEntry*> CheckpointReader::stored(std::string_view name, TensorKind kind) const {
  const TensorEntry* tensor = manifest_.find(name, kind);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("checkpoint ", path_, ": has no ", name_of(kind), " ", std::string(name)));
  }
  return tensor->tied_to.empty() ? tensor : manifest_.find(tensor->tied_to, kind);
}

absl::Status CheckpointReader::read(std::string_view name, TensorKind kind, std::span<std::byte> out) const {
  const auto tensor = stored(name, kind);
  return tensor.ok() ? read_range(name, kind, 0, elements_of((*tensor)->shape), out) : tensor.status();
}

absl::Status CheckpointReader::read_range(std::string_view name, TensorKind kind, int64_t first, int64_t count,
                                          std::span<std::byte> out) const {
  const auto tensor = stored(name, kind);
  if (!tensor.ok()) return tensor.status();
  const std::vector<int64_t>& shape = (*tensor)->shape;
  const size_t element = backend::size_of((*tensor)->dtype);
  const int64_t elements = elements_of(shape);
  if (first < 0 || count < 0 || first > elements || count > elements - first ||
      out.size() != static_cast<size_t>(count) * element) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", path_, ": ", label(**tensor), " has ", elements,
                                                   " elements of ", element, " bytes; asked for [", first, ", ", first,
                                                   " + ", count, ") into ", out.size(), " bytes"));
  }
  return read_boxes(name, kind, boxes_of_range(shape, first, count), out);
}

absl::Status CheckpointReader::read_boxes(std::string_view name, TensorKind kind, std::span<const Box> boxes,
                                          std::span<std::byte> out) const {
  const auto tensor = stored(name, kind);
  if (!tensor.ok()) return tensor.status();
  if (auto status = check_boxes(**tensor, boxes, out.size()); !status.ok()) return status;
  for (const Chunk& chunk : (*tensor)->chunks) {
    const Box held{chunk.offset, chunk.shape};
    std::vector<Wanted> wanted;
    int64_t first = 0;
    for (const Box& box : boxes) {
      if (CommonRuns runs(held, box); runs.count() > 0) wanted.push_back({std::move(runs), first});
      first += box.elements();
    }
    if (wanted.empty()) continue;
    if (auto status = read_chunk(**tensor, chunk, wanted, out); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::read_values(std::string_view name, TensorKind kind, std::span<const Box> boxes,
                                           std::span<float> out) const {
  const auto tensor = stored(name, kind);
  if (!tensor.ok()) return tensor.status();
  if ((*tensor)->dtype != backend::DType::kF32) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", path_, ": ", label(**tensor), " is ", dtype_name((*tensor)->dtype), ", not F32"));
  }
  return read_boxes(name, kind, boxes, std::as_writable_bytes(out));
}

absl::Status CheckpointReader::check_boxes(const TensorEntry& tensor, std::span<const Box> boxes,
                                           uint64_t bytes) const {
  const auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", path_, ": ", label(tensor), ": ", why));
  };
  uint64_t elements = 0;
  for (const Box& box : boxes) {
    if (box.offset.size() != tensor.shape.size() || box.extent.size() != tensor.shape.size()) {
      return bad(absl::StrCat("asked for a box of ", box.offset.size(), " axes, it has ", tensor.shape.size()));
    }
    for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      if (box.offset[axis] < 0 || box.extent[axis] < 0 || box.offset[axis] > tensor.shape[axis] ||
          box.extent[axis] > tensor.shape[axis] - box.offset[axis]) {
        return bad(absl::StrCat("asked for [", box.offset[axis], ", ", box.offset[axis], " + ", box.extent[axis],
                                ") of the ", tensor.shape[axis], " of axis ", axis));
      }
    }
    elements += static_cast<uint64_t>(box.elements());
  }
  const uint64_t element = backend::size_of(tensor.dtype);
  if (bytes == elements * element) return absl::OkStatus();
  return bad(absl::StrCat("asked for ", elements, " elements of ", element, " bytes into ", bytes, " bytes"));
}

// Copies those of the chunk's elements [at, at + piece) that are wanted to their place.
void CheckpointReader::scatter(std::span<const std::byte> piece, int64_t at, int64_t element, std::span<std::byte> out,
                               Wanted& wanted) {
  const int64_t end = at + static_cast<int64_t>(piece.size()) / element;
  const CommonRuns& runs = wanted.runs;
  for (; wanted.next_run < runs.count(); ++wanted.next_run) {
    const int64_t start = runs.start_in_a(wanted.next_run), stop = start + runs.length();
    if (start >= end) return;
    const int64_t from = std::max(start, at), to = std::min(stop, end);
    const int64_t place = wanted.first + runs.start_in_b(wanted.next_run) + from - start;
    std::memcpy(out.data() + place * element, piece.data() + (from - at) * element,
                static_cast<size_t>((to - from) * element));
    if (stop > end) return;  // Goes on in the next piece.
  }
}

absl::Status CheckpointReader::read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::span<Wanted> wanted,
                                          std::span<std::byte> out) const {
  const SafetensorsFile& shard = *shards_.at(chunk.file);
  const TensorInfo& info = *shard.find(chunk.key);
  const auto element = static_cast<int64_t>(backend::size_of(tensor.dtype));
  const uint64_t bytes = info.end - info.begin;
  // A chunk that is wanted whole and in one run goes to its place without a stop.
  const bool direct = wanted.size() == 1 && wanted[0].runs.count() == 1 &&
                      static_cast<uint64_t>(wanted[0].runs.length() * element) == bytes;
  const int64_t place = direct ? wanted[0].first + wanted[0].runs.start_in_b(0) : 0;
  std::vector<std::byte> buffer(direct ? 0 : std::min(kReadPiece, bytes));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < bytes; at += kReadPiece) {
    const uint64_t size = std::min(kReadPiece, bytes - at);
    const auto piece =
        direct ? out.subspan(static_cast<size_t>(place * element) + at, size) : std::span(buffer).first(size);
    if (auto status = shard.read(info, at, piece); !status.ok()) return status;
    crc = crc32c(piece, crc);
    if (direct) continue;
    for (Wanted& one : wanted) scatter(piece, static_cast<int64_t>(at) / element, element, out, one);
  }
  if (crc == chunk.crc32c) return absl::OkStatus();
  const uint64_t begin = shard.data_offset() + info.begin;
  return absl::DataLossError(absl::StrCat("checkpoint file ", shard.path(), ": ", label(tensor), ", bytes [", begin,
                                          ", ", begin + bytes, "): CRC32C ", crc_text(crc), ", the manifest says ",
                                          crc_text(chunk.crc32c)));
}

absl::Status verify_checkpoint(FileSystem& files, const std::string& directory) {
  const auto reader = CheckpointReader::open(files, directory);
  return reader.ok() ? (*reader)->verify() : reader.status();
}

absl::StatusOr<Latest> find_latest(FileSystem& files, const std::string& run_dir, Depth depth) {
  const auto published = list_published(files, run_dir);
  if (!published.ok()) return published.status();
  Latest latest;
  for (const Published& one : *published) {
    auto reader = CheckpointReader::open(files, one.path);
    absl::Status status = reader.status();
    if (status.ok() && depth == Depth::kContents) status = (*reader)->verify();
    if (status.ok()) {
      latest.checkpoint = *std::move(reader);
      break;
    }
    latest.skipped.push_back({one.path, status});
  }
  return latest;
}

}  // namespace telar::checkpoint
