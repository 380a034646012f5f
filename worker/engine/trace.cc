#include "worker/engine/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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
          {"start", trace.start},
          {"seconds", trace.seconds},
          {"issued", trace.issued},
          {"compute", figures.compute},
          {"communication", figures.communication},
          {"exposed", figures.exposed},
          {"wait", figures.wait},
          {"idle", figures.idle},
          {"lanes", std::move(lanes)}};
}

Json name_event(const Trace& trace, const char* what, size_t lane, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", trace.rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

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

Trace make_trace(const Program& program, const Plan& plan, const RunTimes& times,
                 std::span<const std::string> group_names) {
  Trace trace{.start = times.start, .seconds = times.seconds, .issued = times.issued};
  for (const Lane& lane : plan.lanes) {
    const bool named = lane.kind == LaneKind::kComm && lane.index < group_names.size();
    trace.lanes.push_back({named ? group_names[lane.index] : lane.to_string(), lane.kind});
  }
  for (OpId id = 0; id < program.ops().size(); ++id) {
    const Op& op = program.ops()[id];
    trace.ops.push_back({.name = op.name,
                         .phase = op.phase,
                         .lane = plan.ops[id].lane,
                         .bytes = op.comm ? static_cast<double>(op.comm->bytes()) : op.cost.bytes,
                         .receives = op.comm && op.comm->kind == CommKind::kRecv,
                         .comm = op.comm ? std::string(name_of(op.comm->kind)) : std::string(),
                         .start = times.ops[id].start,
                         .stop = times.ops[id].stop});
  }
  return trace;
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
  events.push_back(name_event(trace, "process_name", 0, absl::StrCat("rank ", trace.rank)));
  for (size_t lane = 0; lane < trace.lanes.size(); ++lane) {
    events.push_back(name_event(trace, "thread_name", lane, trace.lanes[lane].name));
    events.push_back({{"name", "thread_sort_index"},
                      {"ph", "M"},
                      {"pid", trace.rank},
                      {"tid", lane},
                      {"args", {{"sort_index", lane}}}});
  }
  for (const TracedOp& op : trace.ops) {
    events.push_back({{"name", op.name},
                      {"cat", std::string(name_of(op.phase))},
                      {"ph", "X"},
                      {"ts", 1e6 * op.start},
                      {"dur", 1e6 * (op.stop - op.start)},
                      {"pid", trace.rank},
                      {"tid", op.lane},
                      {"args", {{"bytes", op.bytes}}}});
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
