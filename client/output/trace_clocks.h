// One clock for the traces of ranks on several nodes.
//
// Each rank compared its node's clock with the same other one, by round trips; what differs between two nodes is so
// known to within half a round trip each. Cause and effect know more: no receive ends before its send began, and no
// collective ends anywhere before it began everywhere (a broadcast: at its root). Each says that one clock is at most
// so far behind another; together with the round trips these are difference constraints, the tightest bounds that
// follow from them are longest paths, and the middle between a trace's bounds breaks none of them, as each bound breaks
// none.
#pragma once

#include <string>
#include <vector>

#include "client/output/trace_links.h"
#include "client/output/trace_rank.h"

namespace telar::client {

struct TraceClocks {
  // What the differences between nodes were found by before cause and effect.
  enum class Basis { kOneNode, kRoundTrips, kWallClocks };
  Basis basis = Basis::kOneNode;
  // False: no clocks at all fit what was measured, so cause and effect were left out.
  bool consistent = true;
  // By trace. Seconds on the clock of the first trace's node, by which the earliest step begins at 0; what is to be
  // added to the trace's own clock to have that one; and how far off that may be, less than 0: nobody knows.
  std::vector<double> start, offset, error;
};

TraceClocks align_clocks(const std::vector<RankTrace>& traces, const TraceLinks& links);

// "one node", "round trips" or "wall clocks".
std::string in_words(TraceClocks::Basis basis);

}  // namespace telar::client
