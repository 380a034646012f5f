#include "worker/engine/account.h"

#include <algorithm>
#include <map>
#include <utility>

namespace telar::engine {
namespace {

constexpr size_t index_of(Part part) { return static_cast<size_t>(part); }

struct Interval {
  double start = 0, stop = 0;
  Part part = Part::kIdle;
};

Part part_of(Phase phase, LaneKind kind) {
  const bool computes = kind == LaneKind::kCompute;
  if (kind == LaneKind::kCopyIn || kind == LaneKind::kCopyOut) return Part::kCopy;
  switch (phase) {
    case Phase::kForward:
      return computes ? Part::kForward : Part::kGangWait;
    case Phase::kBackward:
      return computes ? Part::kBackward : Part::kGangWait;
    case Phase::kRecompute:
      return computes ? Part::kRecompute : Part::kGangWait;
    case Phase::kOptimizer:
      return computes ? Part::kOptimizer : Part::kGangWait;
    case Phase::kOther:
      return computes ? Part::kOther : Part::kGangWait;
    case Phase::kGradComm:
      return computes ? Part::kBackward : Part::kGradComm;  // Casts around a reduction.
    case Phase::kWeightComm:
      return computes ? Part::kForward : Part::kWeightComm;
    case Phase::kTensorComm:
      return computes ? Part::kForward : Part::kTensorComm;
    case Phase::kPipelineComm:
      return computes ? Part::kForward : Part::kPipelineWire;
  }
  return Part::kOther;
}

// By bytes: the shortest message of the pipeline. Most sends find their receiver waiting.
using WireTimes = std::map<double, double>;

WireTimes wire_times(const Trace& trace) {
  WireTimes times;
  for (const TracedOp& op : trace.ops) {
    if (op.comm.empty() || op.phase != Phase::kPipelineComm) continue;
    const auto [known, added] = times.try_emplace(op.bytes, op.stop - op.start);
    if (!added) known->second = std::min(known->second, op.stop - op.start);
  }
  return times;
}

std::vector<Interval> intervals_of(const Trace& trace) {
  const WireTimes wires = wire_times(trace);
  std::vector<Interval> intervals;
  for (const TracedOp& op : trace.ops) {
    if (op.stop <= op.start) continue;
    const Part part = part_of(op.phase, trace.lanes[op.lane].kind);
    double start = op.start;
    if (op.receives && part == Part::kPipelineWire) {
      const double arrives = op.stop - wires.at(op.bytes);
      intervals.push_back({start, arrives, Part::kPipelineWait});
      start = arrives;
    }
    intervals.push_back({start, op.stop, part});
  }
  return intervals;
}

// One part after the other, without gaps, from 0 to the end of the run.
std::vector<Interval> timeline(const Trace& trace) {
  struct Edge {
    double at;
    int change;
    Part part;
  };
  std::vector<Edge> edges;
  for (const Interval& interval : intervals_of(trace)) {
    const double start = std::clamp(interval.start, 0.0, trace.seconds);
    const double stop = std::clamp(interval.stop, 0.0, trace.seconds);
    if (stop <= start) continue;
    edges.push_back({start, 1, interval.part});
    edges.push_back({stop, -1, interval.part});
  }
  std::ranges::sort(edges, {}, &Edge::at);
  std::array<int, kParts> running{};
  running[index_of(Part::kIdle)] = 1;  // Counts where nothing else does.
  std::vector<Interval> line;
  double at = 0;
  const auto advance = [&](double to) {
    if (to <= at) return;
    const auto first = std::ranges::find_if(running, [](int count) { return count > 0; });
    const auto part = static_cast<Part>(first - running.begin());
    if (!line.empty() && line.back().part == part) {
      line.back().stop = to;
    } else {
      line.push_back({at, to, part});
    }
    at = to;
  };
  for (const Edge& edge : edges) {
    advance(edge.at);
    running[index_of(edge.part)] += edge.change;
  }
  advance(trace.seconds);
  return line;
}

std::vector<CommUse> comm_of(const Trace& trace) {
  std::map<std::pair<uint32_t, std::string>, CommUse> uses;
  for (const TracedOp& op : trace.ops) {
    if (op.comm.empty()) continue;
    CommUse& use = uses[{op.lane, op.comm}];
    use.lane = op.lane;
    use.op = op.comm;
    ++use.calls;
    use.bytes += op.bytes;
    use.seconds += op.stop - op.start;
  }
  std::vector<CommUse> all;
  for (auto& [key, use] : uses) all.push_back(std::move(use));
  return all;
}

PipelineUse pipeline_of(const Trace& trace, const std::vector<Interval>& line) {
  double first_forward = trace.seconds, last_forward = 0, first_backward = trace.seconds, last_backward = 0;
  for (const TracedOp& op : trace.ops) {
    if (trace.lanes[op.lane].kind != LaneKind::kCompute) continue;
    if (op.phase == Phase::kForward) {
      first_forward = std::min(first_forward, op.start);
      last_forward = std::max(last_forward, op.stop);
    } else if (op.phase == Phase::kBackward) {
      first_backward = std::min(first_backward, op.start);
      last_backward = std::max(last_backward, op.stop);
    }
  }
  double begin = 0, end = last_backward;
  for (const TracedOp& op : trace.ops) {
    const bool meets =
        trace.lanes[op.lane].kind == LaneKind::kComm && part_of(op.phase, LaneKind::kComm) == Part::kGangWait;
    if (meets && op.stop <= first_forward) begin = std::max(begin, op.stop);
    if (meets && op.phase == Phase::kOptimizer) end = std::max(end, op.stop);
  }
  PipelineUse use{.window = std::max(0.0, end - begin)};
  const double cools = std::max(last_forward, first_backward);
  const auto within = [](const Interval& interval, double from, double to) {
    return std::max(0.0, std::min(interval.stop, to) - std::max(interval.start, from));
  };
  for (const Interval& interval : line) {
    if (interval.part != Part::kPipelineWait && interval.part != Part::kGangWait && interval.part != Part::kIdle)
      continue;
    use.warmup_idle += within(interval, begin, first_backward);
    use.steady_idle += within(interval, first_backward, cools);
    use.cooldown_idle += within(interval, cools, end);
  }
  return use;
}

}  // namespace

std::string_view name_of(Part part) {
  static constexpr std::array<std::string_view, kParts> kNames = {
      "forward",         "backward",      "recompute",  "optimizer",           "other",
      "tp_comm_exposed", "pipeline_wait", "p2p_wire",   "weight_comm_exposed", "grad_comm_exposed",
      "gang_wait",       "copy_exposed",  "device_idle"};
  return kNames[index_of(part)];
}

Account account_of(const Trace& trace) {
  Account account{.seconds = trace.seconds};
  const std::vector<Interval> line = timeline(trace);
  for (const Interval& interval : line) account.parts[index_of(interval.part)] += interval.stop - interval.start;
  account.comm = comm_of(trace);
  account.pipeline = pipeline_of(trace, line);
  return account;
}

double waiting_share(const Account& account) {
  double waited = 0;
  for (const Part part : {Part::kTensorComm, Part::kPipelineWait, Part::kPipelineWire, Part::kWeightComm,
                          Part::kGradComm, Part::kGangWait}) {
    waited += account.parts[index_of(part)];
  }
  return account.seconds > 0 ? waited / account.seconds : 0;
}

}  // namespace telar::engine
