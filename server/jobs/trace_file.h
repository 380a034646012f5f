// A rank's trace of a step, where the ranks of a job put it: <run>/traces/rank-R/trace-N.json, on the storage that
// coordinator and workers share. What is there was written by the job's own processes: no link is followed, and a file
// beyond the limit is refused.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace telar::server::jobs {

inline constexpr uint64_t kMostTraceBytes = 512 << 20;

// Movable; one caller at a time.
class TraceFile {
 public:
  // NOT_FOUND: there is none. Errors name the path. It stays readable while another takes its name.
  static absl::StatusOr<TraceFile> open(const std::string& run_dir, uint32_t rank, uint64_t step);
  ~TraceFile();
  TraceFile(TraceFile&& other) noexcept;
  TraceFile& operator=(TraceFile&&) = delete;

  uint64_t size() const { return size_; }
  // At most `most` bytes from `offset`; fewer at the end.
  absl::StatusOr<std::string> read(uint64_t offset, size_t most) const;

 private:
  TraceFile(std::string path, int file, uint64_t size) : path_(std::move(path)), file_(file), size_(size) {}
  std::string path_;
  int file_;
  uint64_t size_;
};

}  // namespace telar::server::jobs
