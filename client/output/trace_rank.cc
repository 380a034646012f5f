#include "client/output/trace_rank.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNumbers[] = {"start", "seconds", "compute", "communication", "exposed", "wait", "idle"};

bool is_number(const Json& object, const char* key) { return object.contains(key) && object[key].is_number(); }
bool is_text(const Json& object, const char* key) { return object.contains(key) && object[key].is_string(); }
bool is_count(const Json& object, const char* key) { return object.contains(key) && object[key].is_number_unsigned(); }

double number(const Json& object, const char* key, double absent = 0) {
  return is_number(object, key) ? object[key].get<double>() : absent;
}
template <typename T>
T count(const Json& object, const char* key, T absent) {
  return is_count(object, key) ? object[key].get<T>() : absent;
}

// What is wrong with a file's key "telar"; empty: nothing.
std::string fault_of(const Json& told) {
  if (!told.is_object()) return "has no object 'telar'";
  for (const char* key : {"rank", "step"}) {
    if (!is_count(told, key)) return absl::StrCat("telar.", key, " is no count");
  }
  for (const char* key : kNumbers) {
    if (!is_number(told, key)) return absl::StrCat("telar.", key, " is no number");
  }
  if (!told.contains("lanes") || !told["lanes"].is_array()) return "telar.lanes is no list";
  for (const Json& lane : told["lanes"]) {
    const bool named = lane.is_object() && is_text(lane, "name");
    if (!named || !is_number(lane, "busy") || !is_number(lane, "exposed")) return "telar.lanes has a broken entry";
  }
  if (!told.contains("clock")) return "";
  const Json& clock = told["clock"];
  if (!clock.is_object() || !is_count(clock, "node")) return "telar.clock.node is no count";
  for (const char* key : {"monotonic", "wall", "start", "start_error"}) {
    if (!is_number(clock, key)) return absl::StrCat("telar.clock.", key, " is no number");
  }
  const bool compared = is_text(clock, "reference") && is_number(clock, "offset") && is_number(clock, "offset_error");
  return clock.contains("reference") && !compared ? "telar.clock has a broken reference" : "";
}

RankTrace::Clock clock_of(const Json& told, int64_t rank) {
  if (!told.contains("clock")) return {.node = rank, .start = told["start"].get<double>()};
  const Json& clock = told["clock"];
  return {.node = clock["node"].get<int64_t>(),
          .start = number(clock, "start"),
          .start_error = number(clock, "start_error"),
          .wall_ahead = number(clock, "wall") - number(clock, "monotonic"),
          .reference = clock.value("reference", ""),
          .offset = number(clock, "offset"),
          .offset_error = number(clock, "offset_error")};
}

int64_t nanoseconds(double microseconds) { return std::llround(1e3 * microseconds); }

TraceSlice slice_of(const Json& event, TraceNames& names) {
  TraceSlice slice;
  slice.name = names.id(event["name"].get<std::string>());
  if (is_text(event, "cat")) slice.category = names.id(event["cat"].get<std::string>());
  slice.lane = count<uint32_t>(event, "tid", 0);
  slice.start = nanoseconds(number(event, "ts"));
  slice.stop = nanoseconds(number(event, "ts") + number(event, "dur"));
  if (!event.contains("args") || !event["args"].is_object()) return slice;
  const Json& args = event["args"];
  slice.bytes = number(args, "bytes");
  if (is_text(args, "comm")) slice.comm = names.id(args["comm"].get<std::string>());
  slice.stage = count<int32_t>(args, "stage", -1);
  slice.micro_batch = count<int32_t>(args, "micro_batch", -1);
  slice.to = count<int32_t>(args, "to", -1);
  slice.from = count<int32_t>(args, "from", -1);
  slice.root = count<int32_t>(args, "root", -1);
  slice.sent = count<int64_t>(args, "sent", -1);
  slice.received = count<int64_t>(args, "received", -1);
  slice.met = count<int64_t>(args, "met", -1);
  return slice;
}

}  // namespace

uint32_t TraceNames::id(const std::string& text) {
  const auto [found, added] = ids_.try_emplace(text, static_cast<uint32_t>(texts_.size()));
  if (added) texts_.push_back(&found->first);
  return found->second;
}

absl::StatusOr<RankTrace> read_rank_trace(const std::string& path, const std::string& content, TraceNames& names) {
  const auto broken = [&](const std::string& fault) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a trace of a step: ", fault));
  };
  Json json = Json::parse(content, nullptr, false);
  if (!json.is_object()) return broken("no JSON object");
  if (const std::string fault = fault_of(json.value("telar", Json())); !fault.empty()) return broken(fault);
  if (!json.contains("traceEvents") || !json["traceEvents"].is_array()) return broken("traceEvents is no list");
  RankTrace trace;
  trace.path = path;
  trace.told = std::move(json["telar"]);
  trace.step = trace.told["step"].get<uint64_t>();
  trace.rank = trace.told["rank"].get<int64_t>();
  trace.epoch = count<uint64_t>(trace.told, "epoch", 0);
  trace.dp = count<int32_t>(trace.told, "dp", 0);
  trace.tp = count<int32_t>(trace.told, "tp", 0);
  trace.clock = clock_of(trace.told, trace.rank);
  std::map<uint32_t, size_t> last;  // Slice of each lane.
  for (Json& event : json["traceEvents"]) {
    if (!event.is_object() || !is_text(event, "ph") || !is_text(event, "name")) return broken("an event is broken");
    const std::string kind = event["ph"].get<std::string>();
    if (kind == "X") {
      if (!is_number(event, "ts") || !is_number(event, "dur")) return broken("an event has no time");
      trace.slices.push_back(slice_of(event, names));
      // Start and length do not say the end to the last digit.
      const TraceSlice& next = trace.slices.back();
      const auto [before, first] = last.try_emplace(next.lane, trace.slices.size() - 1);
      TraceSlice& previous = trace.slices[before->second];
      if (!first && previous.stop == next.start + 1) previous.stop = std::max(previous.start, next.start);
      before->second = trace.slices.size() - 1;
    } else if (kind == "M") {
      const bool lane = event["name"] == "thread_name" && event.contains("args") && is_text(event["args"], "name");
      if (lane) trace.lanes[count<uint32_t>(event, "tid", 0)] = names.id(event["args"]["name"].get<std::string>());
      trace.metadata.push_back(std::move(event));
    }
  }
  return trace;
}

}  // namespace telar::client
