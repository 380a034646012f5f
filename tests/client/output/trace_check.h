// Whether a joined trace is one that Perfetto draws as it is meant: what the trace event format asks of slices, of flow
// events and of names.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace telar::client::testing {

class TraceCheck {
 public:
  // What is wrong; empty: nothing.
  static std::vector<std::string> faults_of(const nlohmann::json& trace) {
    TraceCheck check;
    if (!trace.contains("traceEvents") || !trace["traceEvents"].is_array()) return {"traceEvents is no list"};
    for (const nlohmann::json& event : trace["traceEvents"]) check.take(event);
    check.finish();
    return check.faults_;
  }

 private:
  using Row = std::pair<int64_t, int64_t>;  // pid, tid
  struct FlowEvent {
    std::string kind, name, category, binding;
    double time = 0;
    Row row;
  };

  void fault(const std::string& what, const nlohmann::json& event) { faults_.push_back(what + ": " + event.dump()); }

  void take(const nlohmann::json& event) {
    if (!event.contains("ph") || !event.contains("name") || !event.contains("pid")) return fault("no event", event);
    const std::string kind = event["ph"];
    const Row row(event["pid"].get<int64_t>(), event.value("tid", int64_t{0}));
    if (kind == "M") {
      names_.insert({event["name"].get<std::string>(), row});
    } else if (kind == "X") {
      if (!event["ts"].is_number() || !event["dur"].is_number() || event["dur"] < 0) return fault("no slice", event);
      if (event["ts"] < 0) fault("before the trace begins", event);
      if (flows_begun_) fault("a slice behind flow events", event);
      slices_[row][event["ts"].get<double>()] = event["dur"].get<double>();
    } else if (kind == "s" || kind == "t" || kind == "f") {
      flows_begun_ = true;
      flows_[event["id"].get<uint64_t>()].push_back(
          {kind, event["name"], event["cat"], event.value("bp", ""), event["ts"].get<double>(), row});
    } else {
      fault("an event of another kind", event);
    }
  }

  void finish() {
    constexpr double kRounding = 1e-6;  // Microseconds.
    for (const auto& [row, slices] : slices_) {
      double end = 0;
      for (const auto& [start, length] : slices) {
        if (start < end - kRounding) faults_.push_back("slices overlap at " + std::to_string(start));
        end = start + length;
      }
      for (const char* name : {"thread_name", "thread_sort_index"}) {
        if (!names_.contains({name, row})) faults_.push_back(std::string(name) + " is missing");
      }
      for (const char* name : {"process_name", "process_sort_index"}) {
        if (!names_.contains({name, Row(row.first, 0)})) faults_.push_back(std::string(name) + " is missing");
      }
    }
    for (const auto& [id, events] : flows_) finish_flow("flow " + std::to_string(id), events);
  }

  void finish_flow(const std::string& flow, const std::vector<FlowEvent>& events) {
    if (events.size() < 2) faults_.push_back(flow + " has one end");
    for (size_t i = 0; i < events.size(); ++i) {
      const FlowEvent& one = events[i];
      const char* wanted = i == 0 ? "s" : i + 1 == events.size() ? "f" : "t";
      if (one.kind != wanted) faults_.push_back(flow + " has " + one.kind + " for " + wanted);
      if (one.kind == "f" && one.binding != "e") faults_.push_back(flow + " ends at the next slice");
      if (one.name != events[0].name || one.category != events[0].category) faults_.push_back(flow + " has two names");
      if (i > 0 && one.time < events[i - 1].time) faults_.push_back(flow + " goes back in time");
      if (!inside(one)) faults_.push_back(flow + " has an end in no slice");
    }
  }

  bool inside(const FlowEvent& event) const {
    const auto slices = slices_.find(event.row);
    if (slices == slices_.end()) return false;
    auto slice = slices->second.upper_bound(event.time);
    if (slice == slices->second.begin()) return false;
    --slice;
    return event.time < slice->first + slice->second;
  }

  std::vector<std::string> faults_;
  std::set<std::pair<std::string, Row>> names_;
  std::map<Row, std::map<double, double>> slices_;  // Start -> length.
  std::map<uint64_t, std::vector<FlowEvent>> flows_;
  bool flows_begun_ = false;
};

}  // namespace telar::client::testing
