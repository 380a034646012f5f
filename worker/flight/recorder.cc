#include "worker/flight/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"

namespace telar::flight {
namespace {

constexpr const char* kOps[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv", "exchange"};

absl::Status failed(const char* what, const std::string& path, int number) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(number)));
}

}  // namespace

uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

const char* op_name(uint8_t op) { return op < std::size(kOps) ? kOps[op] : "call"; }

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::create(const std::string& path, const std::vector<Group>& groups) {
  uint32_t ranks = 0;
  for (const Group& group : groups) ranks += static_cast<uint32_t>(group.ranks.size());
  const auto rows = static_cast<uint32_t>(groups.size());
  const size_t bytes = file_bytes(rows, ranks, kEntries);
  unlink(path.c_str());  // A reader may still have the old one.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return failed("cannot create", path, errno);
  // With its blocks: a page without one would end the process at its first write to a full disk.
  const int allocated = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  void* const memory = allocated != 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int number = allocated != 0 ? allocated : errno;
  close(file);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
    return failed("cannot map", path, number);
  }
  std::memset(memory, 0, bytes);  // Every page is there from now on.
  std::unique_ptr<Recorder> recorder(new Recorder(memory, bytes));
  Header& header = *recorder->header_;
  header.groups = rows;
  header.ranks = ranks;
  header.entries = kEntries;
  auto* const base = static_cast<std::byte*>(memory);
  recorder->groups_ = reinterpret_cast<GroupRow*>(base + table_offset());
  auto* const numbers = reinterpret_cast<uint32_t*>(base + ranks_offset(rows));
  recorder->ring_ = reinterpret_cast<Entry*>(base + ring_offset(rows, ranks));
  uint32_t first = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    GroupRow& row = recorder->groups_[i];
    std::memcpy(row.name, groups[i].name.data(), std::min(groups[i].name.size(), kNameBytes - 1));
    row.first = first;
    row.count = static_cast<uint32_t>(groups[i].ranks.size());
    for (const int rank : groups[i].ranks) numbers[first++] = static_cast<uint32_t>(rank);
  }
  header.magic = kMagic;
  return recorder;
}

Recorder::Recorder(void* memory, size_t bytes)
    : memory_(memory), bytes_(bytes), header_(static_cast<Header*>(memory)) {}

Recorder::~Recorder() { munmap(memory_, bytes_); }

void Recorder::done_before(uint64_t number) {
  header_->finished.store(number, std::memory_order_release);
  beat();
}

uint64_t Recorder::begin(uint32_t group, uint8_t op, uint64_t bytes, uint64_t step, State state) {
  const uint64_t number = header_->next.fetch_add(1, std::memory_order_relaxed);
  Entry& entry = ring_[number % kEntries];
  entry.seal.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.sequence = groups_[group].issued.fetch_add(1, std::memory_order_relaxed) + 1;
  entry.bytes = bytes;
  entry.step = step;
  entry.begun = now_ns();
  entry.done.store(0, std::memory_order_relaxed);
  entry.group = static_cast<uint16_t>(group);
  entry.op = op;
  entry.state.store(state, std::memory_order_relaxed);
  entry.seal.store(number + 1, std::memory_order_release);
  return number;
}

void Recorder::done(uint64_t number) {
  Entry& entry = ring_[number % kEntries];
  if (entry.seal.load(std::memory_order_relaxed) == number + 1) {  // Else the ring has gone round meanwhile.
    entry.done.store(now_ns(), std::memory_order_relaxed);
    entry.state.store(State::kDone, std::memory_order_release);
  }
  beat();
}

}  // namespace telar::flight
