// The bytes of an input file, unpacked where it is packed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::prepare {

// For one thread. Errors name the file.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // The next bytes, at least one; 0 at the end. DATA_LOSS where a packed file is cut short or damaged, with the offset
  // in the file as it is on the disk.
  virtual absl::StatusOr<size_t> read(std::span<char> out) = 0;
  // Goes on behind the next `bytes`; OUT_OF_RANGE when there are fewer.
  virtual absl::Status skip(uint64_t bytes) = 0;
  // Bytes of the file, as it is on the disk, that were read so far.
  virtual uint64_t file_bytes() const = 0;
};

// "-": standard input. A file is gzip or Zstandard by its first bytes; one whose name ends in .gz or .zst has to be.
// Several members or frames follow one another. INVALID_ARGUMENT for Parquet, which is not read, and for directories.
absl::StatusOr<std::unique_ptr<ByteStream>> open_stream(const std::string& path);

}  // namespace telar::prepare
