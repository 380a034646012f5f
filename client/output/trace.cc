#include "client/output/trace.h"

#include <algorithm>
#include <ostream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/output/format.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFigures[] = {"seconds", "compute", "communication", "exposed", "wait", "idle"};

std::string milliseconds(const Json& seconds) { return absl::StrFormat("%.2f", 1e3 * seconds.get<double>()); }
double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

std::string text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void put(std::ostream& out, const char*& separator, const Json& event) {
  out << separator << text(event);
  separator = ",\n";
}

Json args_of(const TraceSlice& slice, const TraceNames& names) {
  Json args = {{"bytes", slice.bytes}};
  if (slice.comm != 0) args["comm"] = names.text(slice.comm);
  const std::pair<const char*, int64_t> numbers[] = {
      {"stage", slice.stage}, {"micro_batch", slice.micro_batch}, {"to", slice.to},     {"sent", slice.sent},
      {"from", slice.from},   {"received", slice.received},       {"root", slice.root}, {"met", slice.met}};
  for (const auto& [key, number] : numbers) {
    if (number >= 0) args[key] = number;
  }
  return args;
}

}  // namespace

absl::Status TraceSet::add(const std::string& path, const std::string& content) {
  auto trace = read_rank_trace(path, content, names_);
  if (!trace.ok()) return trace.status();
  const uint64_t step = trace->step;
  if (first_ != 0 && (step < first_ || step - first_ >= count_)) return absl::OkStatus();
  if (epoch_ && trace->epoch != *epoch_) return absl::OkStatus();
  const auto other = std::find_if(traces_.begin(), traces_.end(),
                                  [&](const RankTrace& one) { return one.step == step && one.rank == trace->rank; });
  if (other != traces_.end()) {
    return absl::AlreadyExistsError(absl::StrCat(other->path, " and ", path, " are both of rank ", other->rank,
                                                 " at step ", step, "; name the folder of one epoch of one job"));
  }
  traces_.push_back(*std::move(trace));
  return absl::OkStatus();
}

absl::Status TraceSet::join() {
  if (traces_.empty()) {
    return absl::InvalidArgumentError(first_ == 0 ? "found no trace-<step>.json"
                                                  : absl::StrCat("found no trace of step ", first_));
  }
  std::sort(traces_.begin(), traces_.end(), [](const RankTrace& a, const RankTrace& b) {
    return std::pair(a.step, a.rank) < std::pair(b.step, b.rank);
  });
  std::set<uint64_t> steps;
  for (const RankTrace& trace : traces_) steps.insert(trace.step);
  if (steps.size() > 1 && first_ == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("found traces of the steps ", absl::StrJoin(steps, ", "), "; choose one with --step"));
  }
  for (const RankTrace& trace : traces_) {
    if (trace.epoch == traces_[0].epoch) continue;
    return absl::InvalidArgumentError(absl::StrCat(traces_[0].path, " is of epoch ", traces_[0].epoch, ", ", trace.path,
                                                   " of epoch ", trace.epoch, ": they are no traces of one run"));
  }
  links_ = find_links(traces_, names_);
  clocks_ = align_clocks(traces_, links_);
  flows_ = find_flows(traces_, names_, links_, clocks_);
  return absl::OkStatus();
}

Json TraceSet::told() const {
  Json all = Json::array();
  for (size_t i = 0; i < traces_.size(); ++i) {
    Json one = traces_[i].told;
    one["clock"]["to_first"] = clocks_.offset[i];
    one["clock"]["to_first_error"] = clocks_.error[i] < 0 ? Json() : Json(clocks_.error[i]);
    all.push_back(std::move(one));
  }
  return all;
}

void TraceSet::write_slices(std::ostream& out, const char*& separator) const {
  std::set<int64_t> named;
  for (size_t i = 0; i < traces_.size(); ++i) {
    const RankTrace& trace = traces_[i];
    if (named.insert(trace.rank).second) {
      for (const Json& event : trace.metadata) put(out, separator, event);
    }
    for (const TraceSlice& slice : trace.slices) {
      const SliceSpan span = span_of(slice, clocks_.start[i]);
      put(out, separator,
          {{"name", names_.text(slice.name)},
           {"cat", names_.text(slice.category)},
           {"ph", "X"},
           {"ts", microseconds(span.start)},
           {"dur", microseconds(span.stop - span.start)},
           {"pid", trace.rank},
           {"tid", slice.lane},
           {"args", args_of(slice, names_)}});
    }
  }
}

// Behind the slices: an event finds the slice that is open at its time.
void TraceSet::write_flows(std::ostream& out, const char*& separator) const {
  uint64_t id = 0;
  for (const TraceFlow& flow : flows_.flows) {
    ++id;
    for (size_t i = 0; i < flow.stops.size(); ++i) {
      const TraceFlow::Stop& stop = flow.stops[i];
      const RankTrace& trace = traces_[stop.at.trace];
      const bool last = i + 1 == flow.stops.size();
      Json event = {{"name", flow.name},
                    {"cat", flow.category},
                    {"ph", i == 0 ? "s"
                           : last ? "f"
                                  : "t"},
                    {"id", id},
                    {"ts", microseconds(stop.nanoseconds)},
                    {"pid", trace.rank},
                    {"tid", trace.slices[stop.at.slice].lane}};
      if (last) event["bp"] = "e";  // The slice around it, not the next one.
      put(out, separator, event);
    }
  }
}

void TraceSet::write(std::ostream& out) const {
  const Json other = {{"clocks", in_words(clocks_.basis)},
                      {"consistent", clocks_.consistent},
                      {"arrows", flows_.flows.size()},
                      {"arrows_left_out", flows_.left_out},
                      {"single_ends", links_.single}};
  out << "{\"displayTimeUnit\":\"ms\",\"telar\":" << text(told()) << ",\"otherData\":" << text(other)
      << ",\"traceEvents\":[";
  const char* separator = "\n";
  write_slices(out, separator);
  write_flows(out, separator);
  out << "\n]}\n";
}

std::string TraceSet::tables(bool wide, bool header) const {
  const bool several = traces_.front().step != traces_.back().step;
  const auto named = [&](const RankTrace& trace) {
    return several ? absl::StrCat(trace.rank, "@", trace.step) : absl::StrCat(trace.rank);
  };
  Table table({"RANK", "STEP MS", "COMPUTE", "COMM", "EXPOSED", "WAIT", "IDLE"});
  Table lanes({"RANK", "LANE", "BUSY MS", "EXPOSED"});
  for (const RankTrace& trace : traces_) {
    std::vector<std::string> row = {named(trace)};
    for (const char* figure : kFigures) row.push_back(milliseconds(trace.told[figure]));
    table.add(std::move(row));
    for (const Json& lane : trace.told["lanes"]) {
      lanes.add({named(trace), one_line(lane["name"].get<std::string>()), milliseconds(lane["busy"]),
                 milliseconds(lane["exposed"])});
    }
  }
  return table.text(header) + (wide ? "\n" + lanes.text(header) : "");
}

std::string TraceSet::figures() const { return told().dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string TraceSet::line() const {
  std::set<int64_t> ranks;
  for (const RankTrace& trace : traces_) ranks.insert(trace.rank);
  std::string line = absl::StrCat(ranks.size(), ranks.size() == 1 ? " rank" : " ranks");
  switch (clocks_.basis) {
    case TraceClocks::Basis::kOneNode:
      absl::StrAppend(&line, " of one node");
      break;
    case TraceClocks::Basis::kRoundTrips:
      absl::StrAppendFormat(&line, "; clocks compared by round trips, to within %.1f us",
                            1e6 * *std::max_element(clocks_.error.begin(), clocks_.error.end()));
      break;
    case TraceClocks::Basis::kWallClocks:
      absl::StrAppend(&line, "; by their nodes' wall clocks, as far as effects do not come before causes");
      break;
  }
  if (!clocks_.consistent) absl::StrAppend(&line, ", which contradict what happened");
  absl::StrAppend(&line, "; ", flows_.flows.size(), " arrows");
  if (flows_.left_out > 0) absl::StrAppend(&line, ", ", flows_.left_out, " left out");
  return line;
}

}  // namespace telar::client
