// A whole file, read-only, in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace telar::data {

// The mapping lives as long as the object. A file that shrinks while it is mapped kills the reader with SIGBUS: data
// files must not change during a run.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, ...; INVALID_ARGUMENT for what is not a regular file or has no bytes. All name
  // `path`.
  static absl::StatusOr<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Starts to read these bytes from the disk, without waiting.
  void will_need(uint64_t first, uint64_t count) const;

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace telar::data
