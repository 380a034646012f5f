// The log lines of a rank, into the file that its standard error is. A full disk does not end a run, nor hold it up:
// the lines that found no room are counted, and a line in their place says how many bytes are missing.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace telar::train {

// Thread safe.
class RankLog {
 public:
  explicit RankLog(int file) : file_(file) {}
  void write(const char* text, size_t size);  // A line, with its end.
  // Bytes that found no room since the last call.
  uint64_t take_lost() { return lost_.exchange(0); }

 private:
  bool append(const char* text, size_t size);
  void lose(size_t size);

  const int file_;
  std::atomic<uint64_t> lost_{0};
  std::mutex mutex_;
  uint64_t missing_ = 0;    // Bytes since the last line that found room; guarded by mutex_, as is the next.
  bool line_open_ = false;  // The last one was cut off.
};

// What spdlog's default logger writes goes from now on through one on standard error, in the form of init_logging().
// Lives as long as the process. Call it once.
RankLog& init_rank_logging(const std::string& program);

}  // namespace telar::train
