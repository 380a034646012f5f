#include "worker/agent/log_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace telar::agent {
namespace {

// Of a block, by which holes are made: only whole ones are holes, and read as such.
uint64_t block_of(const struct stat& info) { return std::max<uint64_t>(4096, static_cast<uint64_t>(info.st_blksize)); }

uint64_t on_disk(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
}

void punch(int file, uint64_t begin, uint64_t end) {
  if (end <= begin) return;
  // Where the file system has no holes the log stays as long as it is.
  (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin));
}

}  // namespace

LogFile::LogFile(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}

LogFile::~LogFile() {
  if (file_ >= 0) close(file_);
}

uint64_t LogFile::size() const {
  struct stat info {};
  return file_ >= 0 && fstat(file_, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

LogFile::Piece LogFile::read(uint64_t offset, size_t most) const {
  Piece piece;
  const uint64_t length = size();
  if (offset >= length) return piece;
  const auto at = static_cast<off_t>(offset);
  const off_t data = lseek(file_, at, SEEK_DATA);
  if (data < 0 && errno == ENXIO) {
    piece.missing = length - offset;  // A hole up to the end.
    return piece;
  }
  if (data > at) {
    piece.missing = static_cast<uint64_t>(data - at);
    return piece;
  }
  const off_t hole = lseek(file_, at, SEEK_HOLE);
  if (hole > at) most = std::min(most, static_cast<size_t>(hole - at));
  piece.data.resize(most);
  ssize_t size = 0;
  do {
    size = pread(file_, piece.data.data(), most, at);
  } while (size < 0 && errno == EINTR);
  piece.data.resize(static_cast<size_t>(std::max<ssize_t>(0, size)));
  return piece;
}

void limit_log(const std::string& path, uint64_t shipped, uint64_t limit) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || static_cast<uint64_t>(info.st_blocks) * 512 <= limit) return;
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  // Half of it stays, so that this is not done for every line.
  const uint64_t block = block_of(info);
  const auto length = static_cast<uint64_t>(info.st_size);
  const uint64_t cut = length > limit / 2 ? (length - limit / 2) / block * block : 0;
  punch(file, 0, std::min(cut, shipped / block * block));
  if (on_disk(file) > limit) punch(file, (shipped + block - 1) / block * block, cut);
  close(file);
}

}  // namespace telar::agent
