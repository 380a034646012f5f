#include "server/store/log_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/fault_point.h"

namespace telar::server::store {
namespace {

class File {
 public:
  File(const std::string& path, int flags) : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

absl::Status failure(const std::string& path, const char* doing) {
  const int code = errno;
  const std::string text = absl::StrCat("log ", path, ": cannot ", doing, ": ", std::strerror(code));
  if (code == ENOSPC || code == EDQUOT) return absl::ResourceExhaustedError(text);
  if (code == EACCES || code == EROFS || code == EPERM) return absl::PermissionDeniedError(text);
  return absl::InternalError(text);
}

absl::Status write_all(int descriptor, const char* data, size_t size, uint64_t offset, const std::string& path) {
  while (size > 0) {
    const ssize_t written = pwrite(descriptor, data, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(path, "write");
    data += written;
    size -= static_cast<size_t>(written);
    offset += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace

bool LogKey::operator<(const LogKey& other) const {
  return std::tie(job, epoch, rank) < std::tie(other.job, other.epoch, other.rank);
}

std::string LogStore::path(const LogKey& key) const {
  return absl::StrCat(root_, "/", key.job, "/", key.rank, ".", key.epoch, ".log");
}

std::mutex& LogStore::lock_of(const LogKey& key) {
  std::lock_guard<std::mutex> hold(mutex_);
  std::unique_ptr<std::mutex>& lock = locks_[key];
  if (!lock) lock = std::make_unique<std::mutex>();
  return *lock;
}

absl::StatusOr<uint64_t> LogStore::append(const LogKey& key, uint64_t offset, const std::string& data) {
  std::lock_guard<std::mutex> hold(lock_of(key));
  const std::string name = path(key);
  std::error_code ignored;  // If the folder cannot be made, opening the file says why.
  std::filesystem::create_directories(root_ + "/" + key.job, ignored);
  const File file(name, O_CREAT | O_RDWR);
  if (file.get() < 0) return failure(name, "open");
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return failure(name, "stat");
  const auto length = static_cast<uint64_t>(info.st_size);
  if (offset > length || offset + data.size() <= length) return length;

  const uint64_t known = length - offset;
  absl::Status status = fault_point("coordinator.log.begin");
  if (status.ok()) status = write_all(file.get(), data.data() + known, data.size() - known, length, name);
  if (status.ok()) status = fault_point("coordinator.log.written");
  if (status.ok() && fdatasync(file.get()) != 0) status = failure(name, "sync");
  if (!status.ok()) {
    // What was not acknowledged must not count as held.
    if (ftruncate(file.get(), static_cast<off_t>(length)) != 0) return failure(name, "truncate");
    return status;
  }
  fault_point("coordinator.log.synced").IgnoreError();
  return offset + data.size();
}

absl::StatusOr<std::string> LogStore::read(const LogKey& key, uint64_t offset, size_t most) const {
  const std::string name = path(key);
  const File file(name, O_RDONLY);
  if (file.get() < 0) {
    if (errno == ENOENT) return "";
    return failure(name, "open");
  }
  std::string data(most, '\0');
  ssize_t count = 0;
  do {
    count = pread(file.get(), data.data(), most, static_cast<off_t>(offset));
  } while (count < 0 && errno == EINTR);
  if (count < 0) return failure(name, "read");
  data.resize(static_cast<size_t>(count));
  return data;
}

}  // namespace telar::server::store
