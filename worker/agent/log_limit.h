// A rank's log that is longer than it may be: its oldest part is given back to the disk, and every byte keeps its
// offset.
//
// The rank appends to the file itself, so nothing can be moved or renamed below it. Instead holes are punched at its
// front. A log has no others, so where the file has a hole bytes are lost, and nothing needs to be kept beside it.
#pragma once

#include <cstdint>
#include <string>

namespace telar::agent {

// A log that is open for reading; keeps its descriptor.
class LogFile {
 public:
  explicit LogFile(const std::string& path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  struct Piece {
    std::string data;      // From the offset on, at most as many as asked for.
    uint64_t missing = 0;  // Instead of data: the bytes from the offset on that are lost.
  };
  // Both empty: there is nothing yet, or no file.
  Piece read(uint64_t offset, size_t most) const;
  uint64_t size() const;

 private:
  const int file_;
};

// Leaves at most about `limit` bytes of the file on the disk. First goes what was shipped, in front of `shipped`; then,
// if that is not enough, what was not.
void limit_log(const std::string& path, uint64_t shipped, uint64_t limit);

}  // namespace telar::agent
