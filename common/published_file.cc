#include "common/published_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"

namespace telar {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

absl::Status failed(const char* operation, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(operation, " ", path));
}

absl::Status write_all(int file, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) return failed("write", path);
    if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

}  // namespace

PublishedFile::PublishedFile(int file, std::string directory, std::string temporary, const std::string& name)
    : file_(file),
      directory_(std::move(directory)),
      temporary_(std::move(temporary)),
      path_(absl::StrCat(directory_, "/", name)) {
  buffer_.reserve(kBufferBytes);
}

absl::StatusOr<std::unique_ptr<PublishedFile>> PublishedFile::create(const std::string& directory,
                                                                     const std::string& name,
                                                                     const std::string& writer) {
  const std::string path = absl::StrCat(directory, "/", kUnpublishedPrefix, writer, name);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return failed("create", path);
  return std::unique_ptr<PublishedFile>(new PublishedFile(file, directory, path, name));
}

PublishedFile::~PublishedFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

absl::Status PublishedFile::append(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  crc32c_ = telar::crc32c(bytes, crc32c_);
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
    bytes = bytes.subspan(count);
    if (buffer_.size() < kBufferBytes) break;
    if (auto status = flush(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status PublishedFile::flush() {
  absl::Status status = write_all(file_, buffer_, temporary_);
  buffer_.clear();
  return status;
}

absl::Status PublishedFile::replace_start(std::span<const std::byte> bytes) {
  if (auto status = flush(); !status.ok()) return status;
  const ssize_t count = ::pwrite(file_, bytes.data(), bytes.size(), 0);
  return count == static_cast<ssize_t>(bytes.size()) ? absl::OkStatus() : failed("write", temporary_);
}

absl::Status PublishedFile::publish() {
  if (auto status = flush(); !status.ok()) return status;
  if (::fsync(file_) != 0) return failed("fsync", temporary_);
  if (::close(std::exchange(file_, -1)) != 0) return failed("close", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed("rename", temporary_);
  return sync_directory(directory_);
}

absl::Status publish_file(const std::string& directory, const std::string& name, std::string_view content) {
  auto file = PublishedFile::create(directory, name);
  if (!file.ok()) return file.status();
  const auto status = (*file)->append(std::as_bytes(std::span(content.data(), content.size())));
  return status.ok() ? (*file)->publish() : status;
}

absl::Status sync_directory(const std::string& directory) {
  const int file = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return failed("open", directory);
  absl::Status status;
  // EINVAL: a file system that makes names durable itself.
  if (::fsync(file) != 0 && errno != EINVAL) status = failed("fsync", directory);
  ::close(file);
  return status;
}

}  // namespace telar
