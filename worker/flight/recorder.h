// A rank writes down its calls to its peers, as they come: for whoever wants to know, when a gang hangs, who is missing
// where. See format.h for the file.
//
// A call is an entry of 64 bytes in mapped memory: no lock, no allocation, no system call, under 200 ns. Nothing here
// fails after create(): a full disk is found there, since the file's blocks are taken.
// Threads: begin() and done() from any, one call at a time a group; the rest from one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/flight/format.h"

namespace telar::flight {

struct Group {
  std::string name;  // Cut where it is longer than the file's names.
  std::vector<int> ranks;
};

class Recorder {
 public:
  // Makes the file anew. The groups are numbered as they stand here.
  static absl::StatusOr<std::unique_ptr<Recorder>> create(const std::string& path, const std::vector<Group>& groups);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void set_activity(Activity activity) {
    header_->activity.store(static_cast<uint32_t>(activity), std::memory_order_relaxed);
    beat();
  }
  // The rank got somewhere.
  void beat() { header_->beats.fetch_add(1, std::memory_order_relaxed); }

  // A call begins, in that state. Returns its number, which grows by one each.
  uint64_t begin(uint32_t group, uint8_t op, uint64_t bytes, uint64_t step, State state);
  void done(uint64_t number);
  // The number that the next call will have.
  uint64_t next() const { return header_->next.load(std::memory_order_relaxed); }
  // All calls before that one are over, as the host knows of a device that has finished what it was given.
  void done_before(uint64_t number);

 private:
  Recorder(void* memory, size_t bytes);

  void* const memory_;
  const size_t bytes_;
  Header* header_ = nullptr;
  GroupRow* groups_ = nullptr;
  Entry* ring_ = nullptr;
};

// CLOCK_MONOTONIC, which all processes of a machine share, in ns.
uint64_t now_ns();

// What calls are, in engine::CommKind's order.
const char* op_name(uint8_t op);

}  // namespace telar::flight
