#include "worker/data/index_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/published_file.h"
#include "common/roots.h"
#include "worker/data/index_format.h"
#include "worker/data/mapped_file.h"
#include "worker/data/sha256.h"

namespace telar::data {
namespace {

// What an index is of: its name, and when the last of its files was changed.
struct Subject {
  std::string name;
  int64_t changed_ns = 0;
  bool operator==(const Subject&) const = default;
};

int64_t nanoseconds(const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; }

// Bytes from all over the file.
std::optional<uint32_t> probe(int file, uint64_t size) {
  uint32_t crc = 0;
  std::byte block[kIndexProbeBytes];
  const uint64_t last = size - std::min<uint64_t>(size, sizeof(block));
  for (uint64_t i = 0; i < kIndexProbes; ++i) {
    const uint64_t at = last / (kIndexProbes - 1) * i + (i + 1 == kIndexProbes ? last % (kIndexProbes - 1) : 0);
    const ssize_t count = ::pread(file, block, sizeof(block), static_cast<off_t>(at));
    if (count < 0) return std::nullopt;
    crc = crc32c(std::span(block, static_cast<size_t>(count)), crc);
  }
  return crc;
}

std::optional<Subject> subject_of(const std::vector<std::string>& files, std::string_view what) {
  std::string described(what);
  Subject subject;
  for (const std::string& path : files) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about {};
    const bool known = file >= 0 && process_roots().check_open(file, path).ok() && ::fstat(file, &about) == 0;
    const auto crc = known ? probe(file, static_cast<uint64_t>(about.st_size)) : std::nullopt;
    if (file >= 0) ::close(file);
    if (!crc) return std::nullopt;
    const int64_t changed = nanoseconds(about.st_ctim);
    absl::StrAppend(&described, "\n", about.st_size, " ", nanoseconds(about.st_mtim), " ", changed, " ", about.st_ino,
                    " ", *crc);
    subject.changed_ns = std::max(subject.changed_ns, changed);
  }
  subject.name = sha256({described}).substr(0, 32);
  return subject;
}

std::optional<std::vector<uint64_t>> read_index(const std::string& path, int64_t changed_ns) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return std::nullopt;
  if (nanoseconds(about.st_mtim) < changed_ns + kIndexRaceNanoseconds) return std::nullopt;
  const auto file = MappedFile::open(path);
  if (!file.ok()) return std::nullopt;
  const auto bytes = file->bytes();
  if (bytes.size() < kIndexHeaderBytes || std::memcmp(bytes.data(), kIndexMagic, kIndexMagicBytes) != 0) {
    return std::nullopt;
  }
  uint32_t head[2];
  std::memcpy(head, bytes.data() + kIndexMagicBytes, sizeof(head));
  const auto body = bytes.subspan(kIndexHeaderBytes);
  if (head[0] != kIndexVersion || body.size() % sizeof(uint64_t) != 0 || crc32c(body) != head[1]) return std::nullopt;
  std::vector<uint64_t> numbers(body.size() / sizeof(uint64_t));
  std::memcpy(numbers.data(), body.data(), body.size());
  return numbers;
}

absl::Status write_index(const std::string& folder, const std::string& name, const std::string& writer,
                         std::span<const uint64_t> numbers) {
  std::error_code ignored;  // What comes next tells.
  std::filesystem::create_directories(folder, ignored);
  auto file = PublishedFile::create(folder, name, writer);
  if (!file.ok()) return file.status();
  const auto body = std::as_bytes(numbers);
  const uint32_t head[] = {kIndexVersion, crc32c(body)};
  auto status = (*file)->append(std::as_bytes(std::span(kIndexMagic, kIndexMagicBytes)));
  if (status.ok()) status = (*file)->append(std::as_bytes(std::span(head)));
  if (status.ok()) status = (*file)->append(body);
  return status.ok() ? (*file)->publish() : status;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> IndexCache::numbers(const std::vector<std::string>& files, std::string_view what,
                                                          const Work& work) const {
  const auto subject = folder_.empty() || files.empty() ? std::nullopt : subject_of(files, what);
  if (!subject) return work();
  if (auto kept = read_index(absl::StrCat(folder_, "/", subject->name), subject->changed_ns)) return *std::move(kept);
  auto made = work();
  // Not what was changed meanwhile. Without an index the next start works again.
  if (made.ok() && !writer_.empty() && subject_of(files, what) == subject) {
    write_index(folder_, subject->name, writer_, *made).IgnoreError();
  }
  return made;
}

}  // namespace telar::data
