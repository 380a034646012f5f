// The traces that the ranks of a job wrote of a step, or of some, made one: docs/formats/trace.md.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/output/trace_clocks.h"
#include "client/output/trace_flows.h"
#include "client/output/trace_links.h"
#include "client/output/trace_rank.h"

namespace telar::client {

class TraceSet {
 public:
  // Only files of these steps are taken, `count` from `first` on; 0: of any, but all of one.
  explicit TraceSet(uint64_t first = 0, uint64_t count = 1) : first_(first), count_(count) {}

  // From here on files of other epochs are not taken either.
  void only_epoch(uint64_t epoch) { epoch_ = epoch; }
  // One rank's file. INVALID_ARGUMENT names the path and what is wrong with it, ALREADY_EXISTS two files of one rank
  // and step.
  absl::Status add(const std::string& path, const std::string& content);
  // To be called behind the last add(). INVALID_ARGUMENT: no file was taken, or what there is are no traces of one run.
  absl::Status join();

  // The rest is for a set that is joined.
  // One file for Perfetto: a process a rank, all on one clock, with arrows.
  void write(std::ostream& out) const;
  // A row a rank and step, milliseconds; `wide` adds a table of what each lane did.
  std::string tables(bool wide, bool header) const;
  // What the ranks say of themselves, an array by step and rank.
  std::string figures() const;
  // "4 ranks; clocks compared by round trips, to within 12.3 us; 96 arrows"
  std::string line() const;

 private:
  nlohmann::ordered_json told() const;
  void write_slices(std::ostream& out, const char*& separator) const;
  void write_flows(std::ostream& out, const char*& separator) const;

  uint64_t first_, count_;
  std::optional<uint64_t> epoch_;
  TraceNames names_;
  std::vector<RankTrace> traces_;  // By step and rank once they are joined.
  TraceLinks links_;
  TraceClocks clocks_;
  TraceFlows flows_;
};

}  // namespace telar::client
