// What belongs together in the traces of a gang: the two ends of a message, the calls of a collective, a micro-batch's
// way from stage to stage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/output/trace_rank.h"

namespace telar::client {

struct SliceAt {
  uint32_t trace = 0, slice = 0;  // Indices.
};

struct TraceLinks {
  struct Pair {
    SliceAt from, to;
  };
  struct Meeting {
    std::vector<SliceAt> members;  // Two or more, in the order of traces.
    std::optional<size_t> root;    // Of a broadcast: which of them.
  };
  std::vector<Pair> messages;  // From a send to its receive.
  std::vector<Meeting> meetings;
  std::vector<Pair> hops;  // From the last forward op of a micro-batch in a stage to its first in the next, elsewhere.
  size_t single = 0;       // Ends of messages whose other end is in none of the traces.
};

// All of these traces, of whatever steps.
TraceLinks find_links(const std::vector<RankTrace>& traces, const TraceNames& names);

}  // namespace telar::client
