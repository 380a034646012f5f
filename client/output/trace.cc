#include "client/output/trace.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/output/format.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFigures[] = {"seconds", "compute", "communication", "exposed", "wait", "idle"};
constexpr double kMicroseconds = 1e6;

std::string milliseconds(const Json& seconds) { return absl::StrFormat("%.2f", 1e3 * seconds.get<double>()); }

bool is_number(const Json& object, const char* key) { return object.contains(key) && object[key].is_number(); }

// What is wrong with a file's key "telar"; empty: nothing.
std::string fault_of(const Json& told) {
  if (!told.is_object()) return "has no object 'telar'";
  for (const char* key : {"rank", "step"}) {
    if (!told.contains(key) || !told[key].is_number_unsigned()) return absl::StrCat("telar.", key, " is no count");
  }
  for (const char* key : kFigures) {
    if (!is_number(told, key)) return absl::StrCat("telar.", key, " is no number");
  }
  if (!is_number(told, "start")) return "telar.start is no number";
  if (!told.contains("lanes") || !told["lanes"].is_array()) return "telar.lanes is no list";
  for (const Json& lane : told["lanes"]) {
    const bool named = lane.is_object() && lane.contains("name") && lane["name"].is_string();
    if (!named || !is_number(lane, "busy") || !is_number(lane, "exposed")) return "telar.lanes has a broken entry";
  }
  return "";
}

}  // namespace

absl::Status TraceSet::add(const std::string& path, const std::string& content) {
  Json json = Json::parse(content, nullptr, false);
  const auto broken = [&](const std::string& fault) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a trace of a step: ", fault));
  };
  if (!json.is_object()) return broken("no JSON object");
  if (const std::string fault = fault_of(json.value("telar", Json())); !fault.empty()) return broken(fault);
  if (!json.value("traceEvents", Json()).is_array()) return broken("traceEvents is no list");
  Rank rank{path, std::move(json["telar"]), std::move(json["traceEvents"])};
  const auto step = rank.told["step"].get<uint64_t>();
  if (only_step_ != 0 && step != only_step_) return absl::OkStatus();
  const auto [other, added] = ranks_.try_emplace({step, rank.told["rank"].get<int64_t>()}, std::move(rank));
  if (added) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(other->second.path, " and ", path, " are both of rank ",
                                               other->first.second, " at step ", step,
                                               "; name the folder of one epoch of one job"));
}

absl::Status TraceSet::check() const {
  if (ranks_.empty()) {
    return absl::InvalidArgumentError(only_step_ == 0 ? "found no trace-<step>.json"
                                                      : absl::StrCat("found no trace of step ", only_step_));
  }
  std::set<uint64_t> steps;
  for (const auto& [key, rank] : ranks_) steps.insert(key.first);
  if (steps.size() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("found traces of the steps ", absl::StrJoin(steps, ", "), "; choose one with --step"));
}

std::string TraceSet::merged() const {
  double first = std::numeric_limits<double>::max();
  for (const auto& [key, rank] : ranks_) first = std::min(first, rank.told["start"].get<double>());
  Json events = Json::array(), told = Json::array();
  for (const auto& [key, rank] : ranks_) {
    const double later = kMicroseconds * (rank.told["start"].get<double>() - first);
    for (Json event : rank.events) {
      if (is_number(event, "ts")) event["ts"] = event["ts"].get<double>() + later;
      events.push_back(std::move(event));
    }
    told.push_back(rank.told);
  }
  Json all;
  all["displayTimeUnit"] = "ms";
  all["telar"] = std::move(told);
  all["traceEvents"] = std::move(events);
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string TraceSet::tables(bool wide, bool header) const {
  Table table({"RANK", "STEP MS", "COMPUTE", "COMM", "EXPOSED", "WAIT", "IDLE"});
  Table lanes({"RANK", "LANE", "BUSY MS", "EXPOSED"});
  for (const auto& [key, rank] : ranks_) {
    std::vector<std::string> row = {absl::StrCat(key.second)};
    for (const char* figure : kFigures) row.push_back(milliseconds(rank.told[figure]));
    table.add(std::move(row));
    for (const Json& lane : rank.told["lanes"]) {
      lanes.add({absl::StrCat(key.second), one_line(lane["name"].get<std::string>()), milliseconds(lane["busy"]),
                 milliseconds(lane["exposed"])});
    }
  }
  return table.text(header) + (wide ? "\n" + lanes.text(header) : "");
}

std::string TraceSet::figures() const {
  Json told = Json::array();
  for (const auto& [key, rank] : ranks_) told.push_back(rank.told);
  return told.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace telar::client
