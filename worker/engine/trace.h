// What one run of a program looked like in time: a figure for each question and a picture for the rest. Pure: no device
// and no clock in here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/backend/collectives.h"
#include "worker/engine/op_timer.h"
#include "worker/engine/program.h"

namespace telar::engine {

struct TracedOp {
  std::string name;
  Phase phase = Phase::kOther;
  uint32_t lane = 0;      // Index into Trace::lanes.
  double bytes = 0;       // What a collective exchanges; of other ops, what they move in memory.
  bool receives = false;  // From a peer.
  std::string comm;       // Of a collective: "all_reduce", ...; else empty.
  Portion portion;
  // Who takes part, and which of their calls it is, so that the ranks' traces can be joined. Ranks are those of the
  // job; numbers count from 0 within the run.
  int to = -1, from = -1;      // Of a message: whom a sender gives it to, whom a receiver gets it from.
  int root = -1;               // Of a broadcast.
  uint64_t sent = 0;           // Of the messages to `to` in this group.
  uint64_t received = 0;       // Of those from `from`.
  uint64_t met = 0;            // Of the group's other calls.
  double start = 0, stop = 0;  // Seconds since the start of the run.
};

struct TracedLane {
  std::string name;  // "compute", the communicator's name, "copy_in", "copy_out".
  LaneKind kind = LaneKind::kCompute;
};

// Which clock a trace is told by, and what is known of others. Seconds.
struct TraceClock {
  int node = 0;             // The first rank of the node: its ranks have one clock.
  double monotonic = 0;     // One instant by the clock that the run's start is told by,
  double wall = 0;          // and since the Unix epoch.
  double start = 0;         // When the run began, by the first.
  double start_error = 0;   // How far off that may be.
  std::string reference;    // Whose clock all ranks of the job were compared with; empty: nothing was compared.
  double offset = 0;        // To be added to the first to have the reference's.
  double offset_error = 0;  // How far off that may be: half of the shortest round trip.
};

struct Trace {
  std::string job;
  uint64_t epoch = 0;
  int rank = 0;
  int world = 1;
  int pp = 0, dp = 0, tp = 0;  // Where the rank stands.
  uint64_t step = 0;
  TraceClock clock;
  double seconds = 0;  // Of the whole run.
  double issued = 0;   // Seconds that the host took to enqueue it.
  std::vector<TracedLane> lanes;
  std::vector<TracedOp> ops;  // Those of one lane do not overlap.
};

// `groups` by GroupId; a group beyond its end is called after its lane, and its calls name no ranks. `rank`: whose
// program it is. All times are 0.
Trace make_trace(const Program& program, const Plan& plan, std::span<const backend::Group> groups, int rank);
// Of one run of that program; allocates nothing.
void set_times(Trace& trace, const RunTimes& times);

struct LaneFigures {
  double busy = 0;     // Seconds in which an op of the lane runs; a collective's time includes waiting for its peers.
  double exposed = 0;  // Of a communication or copy lane: the part of `busy` in which nothing computes.
};
struct TraceFigures {
  double compute = 0;        // Seconds in which a compute lane is busy.
  double communication = 0;  // In which a communication lane is busy, or several.
  double exposed = 0;        // In which a communication lane is busy and nothing computes.
  double wait = 0;           // The part of `exposed` in which a receive runs: a pipeline that waits for its neighbour.
  double idle = 0;           // In which nothing computes and nothing communicates.
  std::vector<LaneFigures> lanes;
};
TraceFigures figures_of(const Trace& trace);

// For Perfetto or chrome://tracing: a process called after the rank, a row a lane, microseconds since the start. Beside
// the events a key "telar" with rank, step, clock and the figures; docs/formats/trace.md.
std::string to_chrome_json(const Trace& trace);

// "step 12 took 103.2 ms: compute 90.1, communication 31.0, exposed 9.5 (of it waiting for a receive 2.0), idle 3.6;
//  dp 20.0 (exposed 8.5), pp 11.0 (exposed 1.0)"
std::string to_line(const Trace& trace);

std::string_view name_of(Phase phase);  // "forward", "grad_comm", ...

}  // namespace telar::engine
