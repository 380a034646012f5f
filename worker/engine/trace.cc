#include "worker/engine/trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace telar::engine {
namespace {

using Json = nlohmann::ordered_json;

struct Interval {
  double start = 0, stop = 0;
};
using Intervals = std::vector<Interval>;  // Ascending, none touching the next.

Intervals united(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.start < b.start; });
  Intervals result;
  for (const Interval& interval : intervals) {
    if (interval.stop <= interval.start) continue;
    if (!result.empty() && interval.start <= result.back().stop) {
      result.back().stop = std::max(result.back().stop, interval.stop);
    } else {
      result.push_back(interval);
    }
  }
  return result;
}

double length(const Intervals& intervals) {
  double sum = 0;
  for (const Interval& interval : intervals) sum += interval.stop - interval.start;
  return sum;
}

double length_outside(const Intervals& intervals, const Intervals& others) {
  double common = 0;
  for (size_t i = 0, j = 0; i < intervals.size() && j < others.size();) {
    common +=
        std::max(0.0, std::min(intervals[i].stop, others[j].stop) - std::max(intervals[i].start, others[j].start));
    intervals[i].stop < others[j].stop ? ++i : ++j;
  }
  return length(intervals) - common;
}

template <typename Filter>
Intervals busy(const Trace& trace, Filter filter) {
  Intervals intervals;
  for (const TracedOp& op : trace.ops) {
    if (filter(op)) intervals.push_back({op.start, op.stop});
  }
  return united(std::move(intervals));
}

Json clock_json(const TraceClock& clock) {
  Json json = {{"node", clock.node},
               {"monotonic", clock.monotonic},
               {"wall", clock.wall},
               {"start", clock.start},
               {"start_error", clock.start_error}};
  if (clock.reference.empty()) return json;
  json["reference"] = clock.reference;
  json["offset"] = clock.offset;
  json["offset_error"] = clock.offset_error;
  return json;
}

Json figures_json(const Trace& trace) {
  const TraceFigures figures = figures_of(trace);
  Json lanes = Json::array();
  for (size_t lane = 0; lane < trace.lanes.size(); ++lane) {
    lanes.push_back({{"name", trace.lanes[lane].name},
                     {"busy", figures.lanes[lane].busy},
                     {"exposed", figures.lanes[lane].exposed}});
  }
  return {{"rank", trace.rank},
          {"step", trace.step},
          {"job", trace.job},
          {"epoch", trace.epoch},
          {"world", trace.world},
          {"pp", trace.pp},
          {"dp", trace.dp},
          {"tp", trace.tp},
          {"start", trace.clock.wall + (trace.clock.start - trace.clock.monotonic)},
          {"clock", clock_json(trace.clock)},
          {"seconds", trace.seconds},
          {"issued", trace.issued},
          {"compute", figures.compute},
          {"communication", figures.communication},
          {"exposed", figures.exposed},
          {"wait", figures.wait},
          {"idle", figures.idle},
          {"lanes", std::move(lanes)}};
}

Json metadata_event(const Trace& trace, const char* what, size_t lane, Json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", trace.rank}, {"tid", lane}, {"args", std::move(args)}};
}

// What an op is besides its time; only what there is to say.
Json args_json(const TracedOp& op) {
  Json args = {{"bytes", op.bytes}};
  if (op.portion.stage >= 0) args["stage"] = op.portion.stage;
  if (op.portion.micro_batch >= 0) args["micro_batch"] = op.portion.micro_batch;
  if (op.comm.empty()) return args;
  args["comm"] = op.comm;
  if (op.to >= 0) {
    args["to"] = op.to;
    args["sent"] = op.sent;
  }
  if (op.from >= 0) {
    args["from"] = op.from;
    args["received"] = op.received;
  }
  if (op.root >= 0) args["root"] = op.root;
  if (op.to < 0 && op.from < 0) args["met"] = op.met;
  return args;
}

// Numbers the calls of a rank as its peers number them.
class CallNumbers {
 public:
  CallNumbers(std::span<const backend::Group> groups, int rank) : groups_(groups), rank_(rank) {}

  void note(const CommCall& call, TracedOp& op) {
    if (call.group >= groups_.size()) return;
    const std::vector<int>& ranks = groups_[call.group].ranks;
    const auto member = [&](int place) { return ranks.at(static_cast<size_t>(place)); };
    if (call.sends()) {
      op.to = member(call.peer);
      op.sent = next_[{call.group, rank_, op.to}]++;
    }
    if (call.receives()) {
      op.from = member(call.receives_from());
      op.received = next_[{call.group, op.from, rank_}]++;
    }
    if (call.point_to_point()) return;
    if (call.kind == CommKind::kBroadcast) op.root = member(call.peer);
    op.met = next_[{call.group, -1, -1}]++;
  }

 private:
  const std::span<const backend::Group> groups_;
  const int rank_;
  std::map<std::tuple<GroupId, int, int>, uint64_t> next_;
};

}  // namespace

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kGradComm:
      return "grad_comm";
    case Phase::kWeightComm:
      return "weight_comm";
    case Phase::kTensorComm:
      return "tensor_comm";
    case Phase::kPipelineComm:
      return "pipeline_comm";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kOther:
      return "other";
  }
  return "?";
}

Trace make_trace(const Program& program, const Plan& plan, std::span<const backend::Group> groups, int rank) {
  Trace trace{.rank = rank};
  for (const Lane& lane : plan.lanes) {
    const bool named = lane.kind == LaneKind::kComm && lane.index < groups.size();
    trace.lanes.push_back({named ? groups[lane.index].name : lane.to_string(), lane.kind});
  }
  CallNumbers numbers(groups, rank);
  for (OpId id = 0; id < program.ops().size(); ++id) {
    const Op& op = program.ops()[id];
    trace.ops.push_back({.name = op.name,
                         .phase = op.phase,
                         .lane = plan.ops[id].lane,
                         .bytes = op.comm ? static_cast<double>(op.comm->bytes()) : op.cost.bytes,
                         .receives = op.comm && op.comm->kind == CommKind::kRecv,
                         .comm = op.comm ? std::string(name_of(op.comm->kind)) : std::string(),
                         .portion = op.portion});
    if (op.comm) numbers.note(*op.comm, trace.ops.back());
  }
  return trace;
}

void set_times(Trace& trace, const RunTimes& times) {
  trace.clock.start = times.start;
  trace.clock.start_error = times.start_error;
  trace.seconds = times.seconds;
  trace.issued = times.issued;
  for (size_t op = 0; op < trace.ops.size(); ++op) {
    trace.ops[op].start = times.ops[op].start;
    trace.ops[op].stop = times.ops[op].stop;
  }
}

TraceFigures figures_of(const Trace& trace) {
  const auto kind = [&](const TracedOp& op) { return trace.lanes[op.lane].kind; };
  const Intervals compute = busy(trace, [&](const TracedOp& op) { return kind(op) == LaneKind::kCompute; });
  const Intervals communication = busy(trace, [&](const TracedOp& op) { return kind(op) == LaneKind::kComm; });
  TraceFigures figures;
  figures.compute = length(compute);
  figures.communication = length(communication);
  figures.exposed = length_outside(communication, compute);
  figures.wait = length_outside(busy(trace, [](const TracedOp& op) { return op.receives; }), compute);
  figures.idle = std::max(0.0, trace.seconds - figures.compute - figures.exposed);
  for (uint32_t lane = 0; lane < trace.lanes.size(); ++lane) {
    const Intervals own = busy(trace, [lane](const TracedOp& op) { return op.lane == lane; });
    const bool computes = trace.lanes[lane].kind == LaneKind::kCompute;
    figures.lanes.push_back({length(own), computes ? 0.0 : length_outside(own, compute)});
  }
  return figures;
}

std::string to_chrome_json(const Trace& trace) {
  Json events = Json::array();
  events.push_back(metadata_event(trace, "process_name", 0, {{"name", absl::StrCat("rank ", trace.rank)}}));
  events.push_back(metadata_event(trace, "process_labels", 0,
                                  {{"labels", absl::StrCat("pipeline ", trace.pp, ", replica ", trace.dp, ", slice ",
                                                           trace.tp, ", node of rank ", trace.clock.node)}}));
  events.push_back(metadata_event(trace, "process_sort_index", 0, {{"sort_index", trace.rank}}));  // By stage.
  for (size_t lane = 0; lane < trace.lanes.size(); ++lane) {
    events.push_back(metadata_event(trace, "thread_name", lane, {{"name", trace.lanes[lane].name}}));
    events.push_back(metadata_event(trace, "thread_sort_index", lane, {{"sort_index", lane}}));
  }
  for (const TracedOp& op : trace.ops) {
    events.push_back({{"name", op.name},
                      {"cat", std::string(name_of(op.phase))},
                      {"ph", "X"},
                      {"ts", 1e6 * op.start},
                      {"dur", 1e6 * (op.stop - op.start)},
                      {"pid", trace.rank},
                      {"tid", op.lane},
                      {"args", args_json(op)}});
  }
  return Json({{"displayTimeUnit", "ms"}, {"telar", figures_json(trace)}, {"traceEvents", std::move(events)}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_line(const Trace& trace) {
  const TraceFigures figures = figures_of(trace);
  std::string line = absl::StrFormat(
      "step %d took %.2f ms: compute %.2f, communication %.2f, exposed %.2f (of it waiting for a receive %.2f), idle "
      "%.2f",
      trace.step, 1e3 * trace.seconds, 1e3 * figures.compute, 1e3 * figures.communication, 1e3 * figures.exposed,
      1e3 * figures.wait, 1e3 * figures.idle);
  const char* separator = "; ";
  for (size_t lane = 0; lane < trace.lanes.size(); ++lane) {
    if (trace.lanes[lane].kind == LaneKind::kCompute) continue;
    absl::StrAppendFormat(&line, "%s%s %.2f (exposed %.2f)", separator, trace.lanes[lane].name,
                          1e3 * figures.lanes[lane].busy, 1e3 * figures.lanes[lane].exposed);
    separator = ", ";
  }
  return line;
}

}  // namespace telar::engine
