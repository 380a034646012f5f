// The file that a rank keeps of its calls to its peers: <rank directory>/flight.
//
// A header, a table of the rank's groups, the numbers of their ranks, and a ring of entries, all of fixed size and in
// this machine's byte order: it is read on the machine that wrote it, by processes of one build. It is mapped into the
// rank, so what was written is there whatever becomes of the process, also while it is stopped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace telar::flight {

inline constexpr const char* kFileName = "flight";
inline constexpr uint64_t kMagic = 0x3154474c46524c54;  // "TLRFLGT1"
inline constexpr uint32_t kEntries = 4096;              // Of the ring; some steps' worth of calls.
inline constexpr size_t kNameBytes = 48;

// What the rank is at, as v1::RankPace.Activity numbers it.
enum class Activity : uint32_t { kUnknown, kStarting, kTraining, kEvaluating, kSaving };

enum class State : uint8_t { kQueued = 1, kRunning = 2, kDone = 3 };

struct Header {
  uint64_t magic;
  uint32_t groups;  // Rows of the table.
  uint32_t ranks;   // Numbers behind it.
  uint32_t entries;
  std::atomic<uint32_t> activity;
  std::atomic<uint64_t> next;      // Entries ever begun; entry i is in place i mod `entries`.
  std::atomic<uint64_t> beats;     // Grows whenever the rank gets anywhere.
  std::atomic<uint64_t> finished;  // Entries below this number are DONE, whatever they say.
};

struct GroupRow {
  char name[kNameBytes];         // Ends with a zero.
  std::atomic<uint64_t> issued;  // Calls so far; the last one's sequence.
  uint32_t first, count;         // Of its members, in the numbers behind the table.
};

struct Entry {
  std::atomic<uint64_t> seal;  // Its number + 1; 0 while it is being written.
  uint64_t sequence;           // Of calls in its group, from 1.
  uint64_t bytes;
  uint64_t step;   // That it is part of; 0: of none.
  uint64_t begun;  // CLOCK_MONOTONIC in ns, as the next one.
  std::atomic<uint64_t> done;
  uint16_t group;
  uint8_t op;  // Index of op_name().
  std::atomic<State> state;
  uint32_t unused[3];
};
static_assert(sizeof(Entry) == 64 && std::atomic<uint64_t>::is_always_lock_free);

inline size_t table_offset() { return sizeof(Header); }
inline size_t ranks_offset(uint32_t groups) { return table_offset() + groups * sizeof(GroupRow); }
inline size_t ring_offset(uint32_t groups, uint32_t ranks) {
  return (ranks_offset(groups) + ranks * sizeof(uint32_t) + 63) / 64 * 64;
}
inline size_t file_bytes(uint32_t groups, uint32_t ranks, uint32_t entries) {
  return ring_offset(groups, ranks) + entries * sizeof(Entry);
}

}  // namespace telar::flight
