// The one seam through which checkpoints touch files, so that tests can play crashes, full disks, bad sectors and
// waiting.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::checkpoint {

// Every error of this file names operation and path: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk full),
// DATA_LOSS (the device failed), ... An interface's methods are for one thread unless it says otherwise.

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // Closes, without a word about errors.
  // All of `bytes`, or an error and an unknown part of them.
  virtual absl::Status append(std::span<const std::byte> bytes) = 0;
  // Returns when the contents are on the device. The file's name is durable only after sync_directory().
  virtual absl::Status sync() = 0;
  virtual absl::Status close() = 0;
};

class ReadableFile {  // Any number of threads.
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;  // When it was opened.
  // Exactly out.size() bytes from `offset`; DATA_LOSS when the file ends before.
  virtual absl::Status read(uint64_t offset, std::span<std::byte> out) const = 0;
};

class FileSystem {  // Any number of threads.
 public:
  virtual ~FileSystem() = default;
  // An empty file; one of that name is emptied.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  // Names of the entries, sorted, without . and ..
  virtual absl::StatusOr<std::vector<std::string>> list(const std::string& directory) = 0;
  virtual absl::Status make_directory(const std::string& path) = 0;  // ALREADY_EXISTS
  // Returns when names created, renamed and removed in `path` are on the device.
  virtual absl::Status sync_directory(const std::string& path) = 0;
  // Atomic. Replaces a file; fails on a directory that has entries.
  virtual absl::Status rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status remove_file(const std::string& path) = 0;
  virtual absl::Status remove_directory(const std::string& path) = 0;  // Must be empty.

  // Returns once the entries of a directory may have changed, `most` later at the latest. For whoever waits for a file
  // that another process, maybe on another host, will make there: list, then wait, then list again.
  virtual void await_change(const std::string& directory, std::chrono::milliseconds most) = 0;
  // For deadlines of such waiting.
  virtual std::chrono::steady_clock::time_point now() = 0;

  // The operating system's.
  static FileSystem& posix();
};

// Makes `path` and what is missing above it, durably.
absl::Status make_directories(FileSystem& files, const std::string& path);
// Removes a directory and the files in it; NOT_FOUND is success. Directories inside it are an error.
absl::Status remove_with_files(FileSystem& files, const std::string& directory);
// Creates, writes, syncs and closes.
absl::Status write_file(FileSystem& files, const std::string& path, std::string_view bytes);
// The same of a file that is to be seen whole or not at all: under the name `draft` first, then by a rename, durable
// behind sync_directory().
absl::Status publish_file(FileSystem& files, const std::string& draft, const std::string& path, std::string_view bytes);
// A whole small file. DATA_LOSS when it is larger than `most`.
absl::StatusOr<std::string> read_file(FileSystem& files, const std::string& path, uint64_t most);

}  // namespace telar::checkpoint
