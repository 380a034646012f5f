#include "server/store/log_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// With its folder. If that cannot be made, opening the file says why.
File open_or_make(const std::string& path) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  return {path, O_CREAT | O_RDWR};
}

absl::StatusOr<uint64_t> length_of(const File& file, const std::string& path) {
  if (file.get() < 0) return failure(path, "open");
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return failure(path, "stat");
  return static_cast<uint64_t>(info.st_size);
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

// Adds a range to those that are in order and apart.
void merge(std::vector<std::pair<uint64_t, uint64_t>>& ranges, std::pair<uint64_t, uint64_t> more) {
  ranges.push_back(more);
  std::sort(ranges.begin(), ranges.end());
  size_t last = 0;
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first <= ranges[last].second) {
      ranges[last].second = std::max(ranges[last].second, ranges[i].second);
    } else {
      ranges[++last] = ranges[i];
    }
  }
  ranges.resize(last + 1);
}

uint64_t sum_of(const std::vector<std::pair<uint64_t, uint64_t>>& ranges) {
  uint64_t sum = 0;
  for (const auto& [begin, end] : ranges) sum += end - begin;
  return sum;
}

uint64_t on_disk(const std::string& path) {
  struct stat info {};
  const bool file = lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return file ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
}

// "<rank>.<epoch>.log"
std::optional<LogKey> key_in(const std::string& job, const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  LogKey key;
  key.job = job;
  const bool right = parts.size() == 3 && parts[2] == "log" && absl::SimpleAtoi(parts[0], &key.rank) &&
                     absl::SimpleAtoi(parts[1], &key.epoch);
  if (!right) return std::nullopt;
  return key;
}

}  // namespace

bool LogKey::operator<(const LogKey& other) const {
  return std::tie(job, epoch, rank) < std::tie(other.job, other.epoch, other.rank);
}

std::string LogStore::path(const LogKey& key) const {
  return absl::StrCat(root_, "/", key.job, "/", key.rank, ".", key.epoch, ".log");
}

std::string LogStore::gaps_path(const LogKey& key) const {
  return absl::StrCat(root_, "/", key.job, "/", key.rank, ".", key.epoch, ".gaps");
}

LogStore::Log& LogStore::log_of(const LogKey& key) {
  std::lock_guard<std::mutex> hold(mutex_);
  std::unique_ptr<Log>& log = logs_[key];
  if (!log) log = std::make_unique<Log>();
  return *log;
}

void LogStore::load(Log& log, const LogKey& key) const {
  if (std::exchange(log.loaded, true)) return;
  std::ifstream file(gaps_path(key));
  // A line that a full disk or a crash cut off is none.
  for (std::string line; std::getline(file, line) && !file.eof();) {
    uint64_t begin = 0, end = 0;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() == 2 && absl::SimpleAtoi(words[0], &begin) && absl::SimpleAtoi(words[1], &end) && begin < end) {
      merge(log.gaps, {begin, end});
    }
  }
}

void LogStore::write_notes(Log& log, const LogKey& key) const {
  if (log.unnoted.empty()) return;
  const File file(gaps_path(key), O_CREAT | O_WRONLY | O_APPEND);
  if (file.get() < 0) return;
  while (!log.unnoted.empty()) {
    const auto& [begin, end] = log.unnoted.back();
    const std::string line = absl::StrCat(begin, " ", end, "\n");
    const ssize_t written = ::write(file.get(), line.data(), line.size());
    if (written > 0 && written < static_cast<ssize_t>(line.size())) {
      if (::write(file.get(), "\n", 1) != 1) return;
    }
    if (written != static_cast<ssize_t>(line.size()) || fdatasync(file.get()) != 0) return;
    log.unnoted.pop_back();
  }
}

void LogStore::add_gap(Log& log, const LogKey& key, Range gap) const {
  const uint64_t before = sum_of(log.gaps);
  merge(log.gaps, gap);
  log.unnoted.push_back(gap);
  if (limits_.on_missing) limits_.on_missing(sum_of(log.gaps) - before);
  write_notes(log, key);
}

absl::StatusOr<uint64_t> LogStore::append(const LogKey& key, uint64_t offset, const std::string& data) {
  Log& log = log_of(key);
  std::lock_guard<std::mutex> hold(log.mutex);
  load(log, key);
  const std::string name = path(key);
  const File file = open_or_make(name);
  const auto held = length_of(file, name);
  if (!held.ok()) return held.status();
  const uint64_t length = *held;
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
  write_notes(log, key);
  keep_within_limit(log, key, file.get());
  return offset + data.size();
}

absl::StatusOr<uint64_t> LogStore::skip(const LogKey& key, uint64_t offset, uint64_t missing) {
  Log& log = log_of(key);
  std::lock_guard<std::mutex> hold(log.mutex);
  load(log, key);
  const std::string name = path(key);
  const File file = open_or_make(name);
  const auto held = length_of(file, name);
  if (!held.ok()) return held.status();
  const uint64_t length = *held;
  const uint64_t end = offset + missing;
  if (offset > length || end <= length) return length;
  // Noted first: a hole that nobody knows of would read as zeros.
  add_gap(log, key, {length, end});
  if (ftruncate(file.get(), static_cast<off_t>(end)) != 0) return failure(name, "lengthen");
  return end;
}

void LogStore::keep_within_limit(Log& log, const LogKey& key, int file) const {
  struct stat info {};
  if (limits_.rank_bytes == 0 || fstat(file, &info) != 0) return;
  if (static_cast<uint64_t>(info.st_blocks) * 512 <= limits_.rank_bytes) return;
  const auto length = static_cast<uint64_t>(info.st_size);
  const uint64_t kept = limits_.rank_bytes / 2;  // So that this is not done for every frame.
  if (length <= kept) return;
  add_gap(log, key, {0, length - kept});
  (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(length - kept));
  write_notes(log, key);  // On a full disk there is room only now.
}

absl::StatusOr<LogStore::Piece> LogStore::read(const LogKey& key, uint64_t offset, size_t most) {
  Log& log = log_of(key);
  std::lock_guard<std::mutex> hold(log.mutex);
  load(log, key);
  Piece piece;
  const std::string name = path(key);
  const File file(name, O_RDONLY);
  if (file.get() < 0) {
    if (errno == ENOENT) return piece;
    return failure(name, "open");
  }
  for (const auto& [begin, end] : log.gaps) {
    if (offset >= begin && offset < end) piece.missing = end - offset;
    if (offset < begin) {
      most = std::min<uint64_t>(most, begin - offset);
      break;
    }
  }
  if (piece.missing > 0) return piece;
  piece.data.resize(most);
  ssize_t count = 0;
  do {
    count = pread(file.get(), piece.data.data(), most, static_cast<off_t>(offset));
  } while (count < 0 && errno == EINTR);
  if (count < 0) return failure(name, "read");
  piece.data.resize(static_cast<size_t>(count));
  return piece;
}

uint64_t LogStore::missing(const LogKey& key) {
  Log& log = log_of(key);
  std::lock_guard<std::mutex> hold(log.mutex);
  load(log, key);
  return sum_of(log.gaps);
}

uint64_t LogStore::remove_old(const std::vector<std::string>& over) {
  if (limits_.total_bytes == 0) return 0;
  uint64_t total = 0, removed = 0;
  std::error_code problem;
  for (std::filesystem::recursive_directory_iterator entry(root_, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    total += on_disk(entry->path().string());
  }
  for (const std::string& job : over) {
    for (std::filesystem::directory_iterator entry(root_ + "/" + job, problem), end; !problem && entry != end;
         entry.increment(problem)) {
      if (total - removed <= limits_.total_bytes) return removed;
      const auto key = key_in(job, entry->path().filename().string());
      if (!key) continue;
      Log& log = log_of(*key);
      std::lock_guard<std::mutex> hold(log.mutex);
      load(log, *key);
      struct stat info {};
      if (stat(entry->path().c_str(), &info) != 0 || info.st_size == 0 || info.st_blocks == 0) continue;
      add_gap(log, *key, {0, static_cast<uint64_t>(info.st_size)});
      if (!log.unnoted.empty()) continue;  // It would read as zeros.
      // Empty and as long as before: where the file system has no holes, too.
      if (truncate(entry->path().c_str(), 0) != 0 || truncate(entry->path().c_str(), info.st_size) != 0) continue;
      removed += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return removed;
}

}  // namespace telar::server::store
