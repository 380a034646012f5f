#include "worker/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/crc32c.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;  // Stays in cache between the read and the CRC; a multiple of any dtype.
constexpr uint64_t kMostManifestBytes = uint64_t{1} << 30;

// Where the elements of a chunk lie in its flattened tensor: runs of equal length, in ascending order.
class Runs {
 public:
  Runs(const std::vector<int64_t>& shape, const Chunk& chunk) : chunk_(chunk), strides_(shape.size()) {
    int64_t stride = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      strides_[axis] = stride;
      stride *= shape[axis];
    }
    // A run takes in the axes that the chunk has whole, and the first before them that it has in part.
    outer_axes_ = shape.size();
    while (outer_axes_ > 0) {
      length_ *= chunk.shape[--outer_axes_];
      if (chunk.shape[outer_axes_] != shape[outer_axes_]) break;
    }
    for (size_t axis = 0; axis < outer_axes_; ++axis) count_ *= chunk.shape[axis];
  }
  int64_t length() const { return length_; }
  int64_t count() const { return count_; }
  // First element of run `index` in the flattened tensor.
  int64_t start(int64_t index) const {
    int64_t position = 0;
    for (size_t axis = strides_.size(); axis-- > 0;) {
      int64_t within = 0;
      if (axis < outer_axes_) {
        within = index % chunk_.shape[axis];
        index /= chunk_.shape[axis];
      }
      position += (chunk_.offset[axis] + within) * strides_[axis];
    }
    return position;
  }

 private:
  const Chunk& chunk_;
  std::vector<int64_t> strides_;
  size_t outer_axes_ = 0;
  int64_t length_ = 1;
  int64_t count_ = 1;
};

// Copies those of the chunk's elements [at, at + piece) that lie in [first, first + count) of the tensor.
void scatter(const Runs& runs, std::span<const std::byte> piece, int64_t at, int64_t first, int64_t count,
             int64_t element, std::span<std::byte> out) {
  int64_t left = static_cast<int64_t>(piece.size()) / element;
  const std::byte* from = piece.data();
  while (left > 0) {
    const int64_t within = at % runs.length();
    const int64_t elements = std::min(left, runs.length() - within);
    const int64_t position = runs.start(at / runs.length()) + within;
    const int64_t begin = std::max(position, first), end = std::min(position + elements, first + count);
    if (begin < end) {
      std::memcpy(out.data() + (begin - first) * element, from + (begin - position) * element,
                  static_cast<size_t>((end - begin) * element));
    }
    at += elements;
    from += elements * element;
    left -= elements;
  }
}

std::string label(const TensorEntry& tensor) { return absl::StrCat(name_of(tensor.kind), " ", tensor.name); }

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
  std::vector<std::byte> piece(std::min(kPiece, file.bytes));
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
      std::vector<std::byte> none;
      if (auto status = read_chunk(tensor, chunk, 0, 0, none); !status.ok()) return status;
    }
  }
  return absl::DataLossError(absl::StrCat("checkpoint file ", path, ": CRC32C ", crc_text(crc), ", the manifest says ",
                                          crc_text(file.crc32c), "; no tensor is hurt, so its header is"));
}

absl::Status CheckpointReader::read(std::string_view name, TensorKind kind, std::span<std::byte> out) const {
  const TensorEntry* tensor = manifest_.find(name, kind);
  int64_t elements = 1;
  if (tensor != nullptr) {
    for (const int64_t extent : tensor->shape) elements *= extent;
  }
  return read_range(name, kind, 0, elements, out);
}

absl::Status CheckpointReader::read_range(std::string_view name, TensorKind kind, int64_t first, int64_t count,
                                          std::span<std::byte> out) const {
  const TensorEntry* tensor = manifest_.find(name, kind);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("checkpoint ", path_, ": has no ", name_of(kind), " ", std::string(name)));
  }
  if (!tensor->tied_to.empty()) return read_range(tensor->tied_to, kind, first, count, out);
  const auto element = static_cast<int64_t>(backend::size_of(tensor->dtype));
  int64_t elements = 1;
  for (const int64_t extent : tensor->shape) elements *= extent;
  if (first < 0 || count < 0 || first > elements || count > elements - first ||
      out.size() != static_cast<size_t>(count * element)) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", path_, ": ", label(*tensor), " has ", elements,
                                                   " elements of ", element, " bytes; asked for [", first, ", ", first,
                                                   " + ", count, ") into ", out.size(), " bytes"));
  }
  for (const Chunk& chunk : tensor->chunks) {
    const Runs runs(tensor->shape, chunk);
    const int64_t begin = runs.start(0), end = runs.start(runs.count() - 1) + runs.length();
    if (begin >= first + count || end <= first) continue;
    if (auto status = read_chunk(*tensor, chunk, first, count, out); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::read_chunk(const TensorEntry& tensor, const Chunk& chunk, int64_t first, int64_t count,
                                          std::span<std::byte> out) const {
  const SafetensorsFile& shard = *shards_.at(chunk.file);
  const TensorInfo& stored = *shard.find(chunk.key);
  const auto element = static_cast<int64_t>(backend::size_of(tensor.dtype));
  const uint64_t bytes = stored.end - stored.begin;
  const Runs runs(tensor.shape, chunk);
  const int64_t start = runs.start(0);
  // A chunk that is one run inside the wanted range goes to its place without a stop.
  const bool direct = runs.count() == 1 && start >= first && start + runs.length() <= first + count;
  std::vector<std::byte> buffer(direct ? 0 : std::min(kPiece, bytes));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    const uint64_t size = std::min(kPiece, bytes - at);
    const auto piece =
        direct ? out.subspan(static_cast<size_t>((start - first) * element) + at, size) : std::span(buffer).first(size);
    if (auto status = shard.read(stored, at, piece); !status.ok()) return status;
    crc = crc32c(piece, crc);
    if (!direct) scatter(runs, piece, static_cast<int64_t>(at) / element, first, count, element, out);
  }
  if (crc == chunk.crc32c) return absl::OkStatus();
  const uint64_t begin = shard.data_offset() + stored.begin;
  return absl::DataLossError(absl::StrCat("checkpoint file ", shard.path(), ": ", label(tensor), ", bytes [", begin,
                                          ", ", begin + bytes, "): CRC32C ", crc_text(crc), ", the manifest says ",
                                          crc_text(chunk.crc32c)));
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
