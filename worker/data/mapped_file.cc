#include "worker/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/roots.h"

namespace telar::data {

absl::StatusOr<MappedFile> MappedFile::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("data file ", path));
  struct stat about {};
  const bool known = ::fstat(file, &about) == 0;
  const int stat_error = errno;
  absl::Status status = process_roots().check_open(file, path);
  void* data = MAP_FAILED;
  if (!status.ok()) {
    // Outside of what may be read.
  } else if (!known) {
    status = absl::ErrnoToStatus(stat_error, absl::StrCat("data file ", path));
  } else if (!S_ISREG(about.st_mode)) {
    status = absl::InvalidArgumentError(absl::StrCat("data file ", path, ": not a regular file"));
  } else if (about.st_size == 0) {
    status = absl::InvalidArgumentError(absl::StrCat("data file ", path, ": empty (0 bytes)"));
  } else {
    data = ::mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) status = absl::ErrnoToStatus(errno, absl::StrCat("data file ", path, ": map"));
  }
  ::close(file);
  if (!status.ok()) return status;
  return MappedFile(static_cast<const std::byte*>(data), static_cast<size_t>(about.st_size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::will_need(uint64_t first, uint64_t count) const {
  if (first >= size_) return;
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = first / page * page, end = std::min<uint64_t>(size_, first + count);
  (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace telar::data
