// The traces that the ranks of a job wrote of one step, made one: docs/formats/trace.md.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/status/status.h"

namespace telar::client {

class TraceSet {
 public:
  // Only files of this step are taken; 0: of any.
  explicit TraceSet(uint64_t step = 0) : only_step_(step) {}

  // One rank's file. INVALID_ARGUMENT names the path and what is wrong with it, ALREADY_EXISTS two files of one rank
  // and step.
  absl::Status add(const std::string& path, const std::string& content);
  // INVALID_ARGUMENT: no file was taken, or files of several steps.
  absl::Status check() const;

  // The rest is for a set that is in order.
  // One file for Perfetto: a process a rank, all on the clock of the host from the first rank's start on.
  std::string merged() const;
  // A row a rank, milliseconds; `wide` adds a table of what each lane did.
  std::string tables(bool wide, bool header) const;
  // What the ranks say of themselves, an array by rank.
  std::string figures() const;

 private:
  struct Rank {
    std::string path;
    nlohmann::ordered_json told, events;
  };
  const uint64_t only_step_;
  std::map<std::pair<uint64_t, int64_t>, Rank> ranks_;  // By step and rank.
};

}  // namespace telar::client
