#include "worker/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/roots.h"

namespace telar::checkpoint {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // Linux moves at most 2 GiB a call.

absl::Status failed(const char* operation, const std::string& path, int error = errno) {
  const std::string what = absl::StrCat(operation, " ", path);
  if (error == EIO) return absl::DataLossError(absl::StrCat(what, ": Input/output error"));
  if (error == EROFS) return absl::PermissionDeniedError(absl::StrCat(what, ": Read-only file system"));
  return absl::ErrnoToStatus(error, what);
}

class PosixWritable : public WritableFile {
 public:
  PosixWritable(int file, std::string path) : file_(file), path_(std::move(path)) {}
  ~PosixWritable() override {
    if (file_ >= 0) ::close(file_);
  }
  absl::Status append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_, bytes.data(), std::min(bytes.size(), kMostAtOnce));
      if (count < 0 && errno != EINTR) return failed("write", path_);
      if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }
  absl::Status sync() override { return ::fsync(file_) == 0 ? absl::OkStatus() : failed("fsync", path_); }
  absl::Status close() override {
    return ::close(std::exchange(file_, -1)) == 0 ? absl::OkStatus() : failed("close", path_);
  }

 private:
  int file_;
  const std::string path_;
};

class PosixReadable : public ReadableFile {
 public:
  PosixReadable(int file, uint64_t size, std::string path) : file_(file), size_(size), path_(std::move(path)) {}
  ~PosixReadable() override { ::close(file_); }
  uint64_t size() const override { return size_; }
  absl::Status read(uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t count = ::pread(file_, out.data(), std::min(out.size(), kMostAtOnce), static_cast<off_t>(offset));
      if (count < 0 && errno != EINTR) return failed("read", path_);
      if (count == 0) return absl::DataLossError(absl::StrCat("read ", path_, ": ends at byte ", offset));
      if (count > 0) {
        out = out.subspan(static_cast<size_t>(count));
        offset += static_cast<uint64_t>(count);
      }
    }
    return absl::OkStatus();
  }

 private:
  const int file_;
  const uint64_t size_;
  const std::string path_;
};

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return failed("create", path);
    absl::Status status = process_roots().check_open(file, path);
    // EINVAL: a device, which has nothing to cut off.
    if (status.ok() && ::ftruncate(file, 0) != 0 && errno != EINVAL) status = failed("create", path);
    if (!status.ok()) {
      ::close(file);
      return status;
    }
    return std::make_unique<PosixWritable>(file, path);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return failed("open", path);
    if (absl::Status status = process_roots().check_open(file, path); !status.ok()) {
      ::close(file);
      return status;
    }
    struct stat about {};
    if (::fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
      ::close(file);
      return absl::FailedPreconditionError(absl::StrCat("open ", path, ": not a regular file"));
    }
    return std::make_unique<PosixReadable>(file, static_cast<uint64_t>(about.st_size), path);
  }

  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return failed("list", directory);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return failed("list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status make_directory(const std::string& path) override {
    return ::mkdir(path.c_str(), 0755) == 0 ? absl::OkStatus() : failed("mkdir", path);
  }

  absl::Status sync_directory(const std::string& path) override {
    const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return failed("open", path);
    const int error = ::fsync(directory) == 0 ? 0 : errno;
    ::close(directory);
    if (error == 0 || error == EINVAL) return absl::OkStatus();  // EINVAL: a file system that syncs names itself.
    return failed("fsync", path, error);
  }

  absl::Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return failed("rename", absl::StrCat(from, " to ", to));
  }

  absl::Status remove_file(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? absl::OkStatus() : failed("unlink", path);
  }

  absl::Status remove_directory(const std::string& path) override {
    return ::rmdir(path.c_str()) == 0 ? absl::OkStatus() : failed("rmdir", path);
  }

  // Of what other hosts do in a directory nothing tells: inotify sees this host's changes only.
  void await_change(const std::string&, std::chrono::milliseconds most) override { std::this_thread::sleep_for(most); }
  std::chrono::steady_clock::time_point now() override { return std::chrono::steady_clock::now(); }
};

}  // namespace

FileSystem& FileSystem::posix() {
  static PosixFileSystem files;
  return files;
}

absl::Status make_directories(FileSystem& files, const std::string& path) {
  auto status = files.make_directory(path);
  if (absl::IsAlreadyExists(status)) return absl::OkStatus();
  const size_t slash = path.find_last_of('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  if (absl::IsNotFound(status) && parent != path) {
    if (auto made = make_directories(files, parent); !made.ok()) return made;
    status = files.make_directory(path);
  }
  if (!status.ok() && !absl::IsAlreadyExists(status)) return status;
  return files.sync_directory(parent);
}

absl::Status remove_with_files(FileSystem& files, const std::string& directory) {
  const auto names = files.list(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (auto status = files.remove_file(absl::StrCat(directory, "/", name)); !status.ok()) return status;
  }
  return files.remove_directory(directory);
}

absl::Status write_file(FileSystem& files, const std::string& path, std::string_view bytes) {
  auto file = files.create(path);
  if (!file.ok()) return file.status();
  auto status = (*file)->append(std::as_bytes(std::span(bytes.data(), bytes.size())));
  if (status.ok()) status = (*file)->sync();
  if (status.ok()) status = (*file)->close();
  return status;
}

absl::Status publish_file(FileSystem& files, const std::string& draft, const std::string& path,
                          std::string_view bytes) {
  const absl::Status status = write_file(files, draft, bytes);
  return status.ok() ? files.rename(draft, path) : status;
}

absl::StatusOr<std::string> read_file(FileSystem& files, const std::string& path, uint64_t most) {
  const auto file = files.open(path);
  if (!file.ok()) return file.status();
  const uint64_t size = (*file)->size();
  if (size > most) return absl::DataLossError(absl::StrCat("read ", path, ": ", size, " bytes, more than ", most));
  std::string bytes(size, '\0');
  const auto status = (*file)->read(0, std::as_writable_bytes(std::span(bytes)));
  if (!status.ok()) return status;
  return bytes;
}

}  // namespace telar::checkpoint
