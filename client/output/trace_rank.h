// One rank's trace of a step as its file has it (docs/formats/trace.md), in little memory: a gang has a thousand of
// them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::client {

// Names that stand in many slices, each once. 0 is the empty one.
class TraceNames {
 public:
  TraceNames() { id(""); }
  TraceNames(TraceNames&&) = default;
  TraceNames& operator=(TraceNames&&) = default;
  uint32_t id(const std::string& text);
  const std::string& text(uint32_t id) const { return *texts_[id]; }

 private:
  std::map<std::string, uint32_t> ids_;
  std::vector<const std::string*> texts_;  // Into ids_.
};

// An op. Names are TraceNames's; ranks, stages and numbers are -1 where there is none.
struct TraceSlice {
  uint32_t name = 0, category = 0;
  uint32_t comm = 0;  // "all_reduce", "send", ...; 0: it exchanges nothing.
  uint32_t lane = 0;
  int64_t start = 0, stop = 0;  // Nanoseconds since the step's start on this rank; slices that touch still do.
  double bytes = 0;
  int32_t stage = -1, micro_batch = -1;
  int32_t to = -1, from = -1, root = -1;
  int64_t sent = -1, received = -1, met = -1;
};

struct RankTrace {
  std::string path;
  nlohmann::ordered_json told;                   // What it says of itself, checked.
  std::vector<nlohmann::ordered_json> metadata;  // Names of process and lanes.
  std::map<uint32_t, uint32_t> lanes;            // Number -> name.
  std::vector<TraceSlice> slices;
  uint64_t step = 0, epoch = 0;
  int64_t rank = 0;
  int32_t dp = 0, tp = 0;
  // Seconds; see engine::TraceClock. Of files without it: each rank a node of its own, and the wall's clock for both.
  struct Clock {
    int64_t node = 0;
    double start = 0, start_error = 0;
    double wall_ahead = 0;  // Of the clock that `start` is told by.
    std::string reference;  // Empty: compared with none.
    double offset = 0, offset_error = 0;
  } clock;
};

// INVALID_ARGUMENT names the path and what is wrong with it.
absl::StatusOr<RankTrace> read_rank_trace(const std::string& path, const std::string& content, TraceNames& names);

}  // namespace telar::client
