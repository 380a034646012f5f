// The output of every rank, byte for byte: append-only files <root>/<job>/<rank>.<epoch>.log.
//
// The length of a file is the offset to go on from, so nothing else has to be kept. Safe to call from any thread.
// Errors name the path; RESOURCE_EXHAUSTED when the disk is full.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::server::store {

struct LogKey {
  std::string job;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  bool operator<(const LogKey& other) const;
};

class LogStore {
 public:
  explicit LogStore(std::string root) : root_(std::move(root)) {}

  // Appends what is new of `data`, which starts at `offset`; bytes already held are dropped. Returns the offset to go
  // on from, which is less than `offset` when there is a gap (then nothing was written). On the disk when it returns.
  absl::StatusOr<uint64_t> append(const LogKey& key, uint64_t offset, const std::string& data);
  // At most `most` bytes from `offset`; empty at or beyond the end, and for a log that does not exist yet.
  absl::StatusOr<std::string> read(const LogKey& key, uint64_t offset, size_t most) const;
  std::string path(const LogKey& key) const;

 private:
  // One lock a log, so that a slow disk holds up only the ranks that write.
  std::mutex& lock_of(const LogKey& key);

  const std::string root_;
  std::mutex mutex_;
  std::map<LogKey, std::unique_ptr<std::mutex>> locks_;  // Guarded by mutex_.
};

}  // namespace telar::server::store
