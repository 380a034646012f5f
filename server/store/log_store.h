// The output of every rank, byte for byte: append-only files <root>/<job>/<rank>.<epoch>.log.
//
// The length of a file is the offset to go on from. Bytes that are lost or were removed leave a hole of their size, so
// that every other keeps its offset; which they are stands in <rank>.<epoch>.gaps, a line "begin end" each. Safe to
// call from any thread. Errors name the path; RESOURCE_EXHAUSTED when the disk is full.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::server::store {

struct LogKey {
  std::string job;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  bool operator<(const LogKey& other) const;
};

struct LogLimits {
  uint64_t rank_bytes = 0;   // Of one rank in one epoch, on the disk; the oldest go. 0: no limit.
  uint64_t total_bytes = 0;  // Of all, where removing those of jobs that are over can help. 0: no limit.
  std::function<void(uint64_t bytes)> on_missing = {};  // Told of each byte that is missing from now on; may be empty.
};

class LogStore {
 public:
  explicit LogStore(std::string root, LogLimits limits = {}) : root_(std::move(root)), limits_(std::move(limits)) {}

  // Appends what is new of `data`, which starts at `offset`; bytes already held are dropped. Returns the offset to go
  // on from, which is less than `offset` when there is a gap (then nothing was written). On the disk when it returns.
  absl::StatusOr<uint64_t> append(const LogKey& key, uint64_t offset, const std::string& data);
  // The same for `missing` bytes that nobody has any more. Takes no room on the disk but for the note, which is written
  // later when there is none for it.
  absl::StatusOr<uint64_t> skip(const LogKey& key, uint64_t offset, uint64_t missing);

  struct Piece {
    std::string data;
    uint64_t missing = 0;  // Instead of data: how many bytes from the offset on are gone.
  };
  // At most `most` bytes from `offset`; empty at or beyond the end, and for a log that does not exist yet.
  absl::StatusOr<Piece> read(const LogKey& key, uint64_t offset, size_t most);
  uint64_t missing(const LogKey& key);  // All in all.

  // Removes the bytes of logs until the rest is within total_bytes: those of the jobs in `over`, in this order.
  // Returns how many bytes went.
  uint64_t remove_old(const std::vector<std::string>& over);

  std::string path(const LogKey& key) const;

 private:
  using Range = std::pair<uint64_t, uint64_t>;
  // One lock a log, so that a slow disk holds up only the ranks that write.
  struct Log {
    std::mutex mutex;
    bool loaded = false;
    std::vector<Range> gaps;     // In order, apart from each other.
    std::vector<Range> unnoted;  // Those of them that the disk had no room for yet.
  };

  Log& log_of(const LogKey& key);
  std::string gaps_path(const LogKey& key) const;
  // All below with the log's mutex held.
  void load(Log& log, const LogKey& key) const;
  void add_gap(Log& log, const LogKey& key, Range gap) const;
  void write_notes(Log& log, const LogKey& key) const;
  void keep_within_limit(Log& log, const LogKey& key, int file) const;

  const std::string root_;
  const LogLimits limits_;
  std::mutex mutex_;
  std::map<LogKey, std::unique_ptr<Log>> logs_;  // Guarded by mutex_.
};

}  // namespace telar::server::store
