#include "worker/flight/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/flight/recorder.h"

namespace telar::flight {
namespace {

class File {
 public:
  explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool good() const { return fd_ >= 0; }
  size_t bytes() const {
    struct stat about {};
    return fstat(fd_, &about) == 0 ? static_cast<size_t>(about.st_size) : 0;
  }
  bool read(void* to, size_t bytes) const { return pread(fd_, to, bytes, 0) == static_cast<ssize_t>(bytes); }

 private:
  const int fd_;
};

// A copy of the file, whose parts are known to lie within it.
struct Copy {
  std::vector<uint64_t> memory;  // Aligned as the file's parts want it.
  const std::byte* base() const { return reinterpret_cast<const std::byte*>(memory.data()); }
  const Header& header() const { return *reinterpret_cast<const Header*>(base()); }
  const GroupRow& group(uint32_t i) const { return reinterpret_cast<const GroupRow*>(base() + table_offset())[i]; }
  const uint32_t* ranks() const { return reinterpret_cast<const uint32_t*>(base() + ranks_offset(header().groups)); }
  const Entry& entry(uint64_t number) const {
    const size_t ring = ring_offset(header().groups, header().ranks);
    return reinterpret_cast<const Entry*>(base() + ring)[number % header().entries];
  }
};

absl::StatusOr<Copy> copy_of(const std::string& path) {
  const File file(path);
  if (!file.good()) return absl::NotFoundError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  const size_t bytes = file.bytes();
  Copy copy;
  copy.memory.resize((bytes + 7) / 8);
  const auto foreign = [&] { return absl::DataLossError(absl::StrCat(path, " is no flight record of this version")); };
  if (bytes < sizeof(Header) || !file.read(copy.memory.data(), bytes)) return foreign();
  const Header& header = copy.header();
  constexpr uint32_t kMost = 1u << 24;
  if (header.magic != kMagic || header.groups > kMost || header.ranks > kMost || header.entries == 0 ||
      header.entries > kMost || bytes != file_bytes(header.groups, header.ranks, header.entries)) {
    return foreign();
  }
  for (uint32_t i = 0; i < header.groups; ++i) {
    const GroupRow& row = copy.group(i);
    if (uint64_t{row.first} + row.count > header.ranks || row.name[kNameBytes - 1] != 0) return foreign();
  }
  return copy;
}

Call call_of(const Copy& copy, uint64_t number, uint64_t now) {
  const Entry& entry = copy.entry(number);
  const GroupRow& row = copy.group(entry.group);
  Call call;
  call.group = row.name;
  call.ranks.assign(copy.ranks() + row.first, copy.ranks() + row.first + row.count);
  call.sequence = entry.sequence;
  call.op = op_name(entry.op);
  call.bytes = entry.bytes;
  call.step = entry.step;
  call.state = entry.state.load();
  if (number < copy.header().finished.load()) call.state = State::kDone;
  const uint64_t done = entry.done.load(), since = done != 0 ? done : entry.begun;
  call.seconds = now > since ? static_cast<double>(now - since) * 1e-9 : 0;
  return call;
}

}  // namespace

std::optional<Glance> glance(const std::string& path) {
  const File file(path);
  alignas(Header) std::byte bytes[sizeof(Header)];
  if (!file.good() || !file.read(bytes, sizeof(bytes))) return std::nullopt;
  const Header& header = *reinterpret_cast<const Header*>(bytes);
  const uint32_t activity = header.activity.load();
  if (header.magic != kMagic || activity > static_cast<uint32_t>(Activity::kSaving)) return std::nullopt;
  return Glance{static_cast<Activity>(activity), header.beats.load()};
}

absl::StatusOr<std::vector<Call>> read_calls(const std::string& path, size_t most) {
  const auto copy = copy_of(path);
  if (!copy.ok()) return copy.status();
  const uint64_t now = now_ns();
  const Header& header = copy->header();
  const uint64_t end = header.next.load(), oldest = end > header.entries ? end - header.entries : 0;
  std::vector<uint64_t> chosen;
  std::vector<bool> seen(header.groups, false);
  std::vector<uint64_t> open(header.groups, end);  // The oldest call that is not over.
  for (uint64_t number = end; number-- > oldest;) {
    const Entry& entry = copy->entry(number);
    if (entry.seal.load() != number + 1 || entry.group >= header.groups) continue;
    if (number >= header.finished.load() && entry.state.load() != State::kDone) open[entry.group] = number;
    if (chosen.size() >= most && seen[entry.group]) continue;
    seen[entry.group] = true;
    chosen.push_back(number);
  }
  for (const uint64_t number : open) {
    if (number != end) chosen.push_back(number);
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  std::vector<Call> calls;
  for (const uint64_t number : chosen) calls.push_back(call_of(*copy, number, now));
  return calls;
}

}  // namespace telar::flight
