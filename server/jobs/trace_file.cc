#include "server/jobs/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace telar::server::jobs {
namespace {

absl::Status failed(const std::string& path) {
  const int number = errno;
  if (number == ENOENT || number == ENOTDIR) {
    return error(absl::StatusCode::kNotFound, "TRACE_NOT_FOUND", absl::StrCat("there is no ", path));
  }
  return error(absl::StatusCode::kUnavailable, "TRACE_UNREADABLE",
               absl::StrCat("cannot read ", path, ": ", std::strerror(number)));
}

}  // namespace

absl::StatusOr<TraceFile> TraceFile::open(const std::string& run_dir, uint32_t rank, uint64_t step) {
  const std::string names[] = {"traces", absl::StrCat("rank-", rank), absl::StrCat("trace-", step, ".json")};
  const std::string path = absl::StrCat(run_dir, "/", names[0], "/", names[1], "/", names[2]);
  int at = ::open(run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (const std::string& name : names) {
    if (at < 0) return failed(path);
    const int next = openat(at, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const int number = errno;
    close(at);
    errno = number;
    at = next;
  }
  if (at < 0) return failed(path);
  TraceFile file(path, at, 0);
  struct stat facts = {};
  if (fstat(at, &facts) != 0) return failed(path);
  file.size_ = static_cast<uint64_t>(facts.st_size);
  if (S_ISREG(facts.st_mode) && file.size_ <= kMostTraceBytes) return file;
  return error(absl::StatusCode::kFailedPrecondition, "TRACE_UNREADABLE",
               absl::StrCat(path, " is no file of at most ", kMostTraceBytes, " bytes"));
}

TraceFile::~TraceFile() {
  if (file_ >= 0) close(file_);
}

TraceFile::TraceFile(TraceFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}

absl::StatusOr<std::string> TraceFile::read(uint64_t offset, size_t most) const {
  std::string data(offset < size_ ? std::min<uint64_t>(most, size_ - offset) : 0, '\0');
  for (size_t done = 0; done < data.size();) {
    const ssize_t count = pread(file_, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(path_);
    if (count == 0) {
      return error(absl::StatusCode::kUnavailable, "TRACE_UNREADABLE", absl::StrCat(path_, " became shorter"));
    }
    done += static_cast<size_t>(count);
  }
  return data;
}

}  // namespace telar::server::jobs
