// Arrows between slices, for Perfetto and chrome://tracing: flow events of the trace event format, of which each end
// lies inside the slice that it belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/output/trace_clocks.h"
#include "client/output/trace_links.h"

namespace telar::client {

// A slice in nanoseconds of the common clock.
struct SliceSpan {
  int64_t start = 0, stop = 0;
};
SliceSpan span_of(const TraceSlice& slice, double trace_start);

struct TraceFlow {
  const char* category = "";  // "message", "collective", "micro-batch"
  std::string name;
  struct Stop {
    SliceAt at;
    int64_t nanoseconds = 0;
  };
  std::vector<Stop> stops;  // Two or more, each no earlier than the one before.
};

struct TraceFlows {
  std::vector<TraceFlow> flows;
  size_t left_out = 0;  // Whose ends would be in the wrong order, or in a slice of no length.
};

TraceFlows find_flows(const std::vector<RankTrace>& traces, const TraceNames& names, const TraceLinks& links,
                      const TraceClocks& clocks);

}  // namespace telar::client
