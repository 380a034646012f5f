// What one run of a program looked like in time: a figure for each question and a picture for the rest. Pure: no device
// and no clock in here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/engine/op_timer.h"
#include "worker/engine/program.h"

namespace telar::engine {

struct TracedOp {
  std::string name;
  Phase phase = Phase::kOther;
  uint32_t lane = 0;           // Index into Trace::lanes.
  double bytes = 0;            // What a collective exchanges; of other ops, what they move in memory.
  bool receives = false;       // From a peer.
  std::string comm;            // Of a collective: "all_reduce", ...; else empty.
  double start = 0, stop = 0;  // Seconds since the start of the run.
};

struct TracedLane {
  std::string name;  // "compute", the communicator's name, "copy_in", "copy_out".
  LaneKind kind = LaneKind::kCompute;
};

struct Trace {
  int rank = 0;
  uint64_t step = 0;
  double start = 0;    // Seconds since the Unix epoch.
  double seconds = 0;  // Of the whole run.
  double issued = 0;   // Seconds that the host took to enqueue it.
  std::vector<TracedLane> lanes;
  std::vector<TracedOp> ops;  // Those of one lane do not overlap.
};

// `group_names` by GroupId; a group beyond its end is called after its lane.
Trace make_trace(const Program& program, const Plan& plan, const RunTimes& times,
                 std::span<const std::string> group_names);

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
// the events a key "telar" with rank, step, start and the figures; docs/formats/trace.md.
std::string to_chrome_json(const Trace& trace);

// "step 12 took 103.2 ms: compute 90.1, communication 31.0, exposed 9.5 (of it waiting for a receive 2.0), idle 3.6;
//  dp 20.0 (exposed 8.5), pp 11.0 (exposed 1.0)"
std::string to_line(const Trace& trace);

std::string_view name_of(Phase phase);  // "forward", "grad_comm", ...

}  // namespace telar::engine
