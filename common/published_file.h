// A file that is either there in whole or not at all, whenever the machine stops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar {

// What a file is called in its directory until it is published. Left behind by a writer that was killed; anyone who
// writes into that directory next may remove it.
inline constexpr const char* kUnpublishedPrefix = ".tmp-";

// For one thread. Errors name operation and path.
class PublishedFile {
 public:
  // To become `directory`/`name`; a file of that name stays until then. Of several processes that may write it at once
  // each has another `writer`, and the last one's stays.
  static absl::StatusOr<std::unique_ptr<PublishedFile>> create(const std::string& directory, const std::string& name,
                                                               const std::string& writer = "");
  // Removes what was not published.
  ~PublishedFile();
  PublishedFile(const PublishedFile&) = delete;
  PublishedFile& operator=(const PublishedFile&) = delete;

  absl::Status append(std::span<const std::byte> bytes);
  // Puts other bytes in the place of the first ones; crc32c() means nothing from then on.
  absl::Status replace_start(std::span<const std::byte> bytes);
  // Flushes to the device, renames, and makes the name durable. Nothing may follow.
  absl::Status publish();

  uint64_t bytes() const { return bytes_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  PublishedFile(int file, std::string directory, std::string temporary, const std::string& name);
  absl::Status flush();

  int file_;
  const std::string directory_, temporary_, path_;
  std::vector<std::byte> buffer_;
  uint64_t bytes_ = 0;
  uint32_t crc32c_ = 0;
};

// All of a small file at once.
absl::Status publish_file(const std::string& directory, const std::string& name, std::string_view content);

absl::Status sync_directory(const std::string& directory);

}  // namespace telar
