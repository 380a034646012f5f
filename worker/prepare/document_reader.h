// Input files, one behind the other, cut into documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/prepare/byte_stream.h"

namespace telar::prepare {

enum class TextSplit : uint8_t {
  kFile,       // A file is a document.
  kParagraph,  // Blank lines end a document.
  kSeparator,  // A line of its own, given by the user, ends a document.
};

struct Input {
  std::string path;
  bool jsonl = false;  // A document a line; else text.
  uint64_t bytes = 0;  // On the disk; 0 for standard input.
  int64_t modified_ns = 0;
};

// A place between documents; reading goes on from it.
struct Position {
  uint64_t file = 0;    // Index of the input.
  uint64_t offset = 0;  // Bytes before it, unpacked.
  uint64_t line = 0;    // Lines before it.
  bool operator==(const Position&) const = default;
};

struct Piece {
  size_t begin = 0, size = 0;  // In the chunk's bytes.
  uint64_t line = 0;           // Of its first byte, from 1.
  Position after;
};

// Some documents of one file, as they stand there.
struct Chunk {
  uint64_t file = 0;
  std::string bytes;
  std::vector<Piece> pieces;
  uint64_t read_bytes = 0;  // Of all inputs on the disk, up to here.
  absl::Status status;      // What stopped the reading behind these pieces.
};

// Chunks are closed at this size, and hold more only where one document does.
inline constexpr size_t kChunkBytes = size_t{1} << 18;
// A longer document stops the reading: it could not be held in memory a few times over, and its tokens not be counted
// in 31 bits.
inline constexpr size_t kMostDocumentBytes = size_t{1} << 30;

// For one thread; `inputs` must outlive it.
class DocumentReader {
 public:
  DocumentReader(const std::vector<Input>& inputs, TextSplit split, std::string separator, Position from);

  // False: everything is read, or the chunk before told of an error. Blank lines of JSONL are passed over.
  bool next(Chunk& chunk);

 private:
  absl::Status fill(Chunk& chunk);
  // Adds one document to the chunk; false at the end of the file.
  absl::StatusOr<bool> add_document(Chunk& chunk);
  absl::StatusOr<bool> add_file(Chunk& chunk);
  absl::StatusOr<bool> add_lines(Chunk& chunk);
  // Appends a line with its line break to `out`; false at the end of the file. `begin` is where its document began.
  absl::StatusOr<bool> append_line(std::string& out, size_t begin);
  absl::Status refill();
  absl::Status too_long(uint64_t line) const;
  const Input& input() const { return inputs_[at_.file]; }

  const std::vector<Input>& inputs_;
  const TextSplit split_;
  const std::string separator_;
  Position at_;
  std::unique_ptr<ByteStream> stream_;
  uint64_t earlier_bytes_ = 0;  // Of the files before this one.
  std::vector<char> block_;
  size_t block_begin_ = 0, block_end_ = 0;
  bool failed_ = false;
};

}  // namespace telar::prepare
