#include "worker/probe/report.h"

#include <nlohmann/json.hpp>

namespace telar::probe {

using nlohmann::json;

std::string to_text(const Report& report) {
  json devices = json::array();
  for (const DeviceReading& one : report.devices) {
    devices.push_back({{"index", one.index},
                       {"used_bytes", one.used_bytes},
                       {"pids", one.pids},
                       {"counts", one.counts},
                       {"holding", one.holding}});
  }
  return json{{"round", report.round}, {"devices", devices}}.dump();
}

std::optional<Report> parse_report(const std::string& text) {
  Report report;
  try {
    const json value = json::parse(text);
    report.round = value.at("round").get<uint64_t>();
    for (const json& one : value.at("devices")) {
      DeviceReading& device = report.devices.emplace_back();
      device.index = one.at("index").get<uint32_t>();
      device.used_bytes = one.at("used_bytes").get<uint64_t>();
      device.pids = one.at("pids").get<std::vector<int>>();
      device.counts = one.at("counts").get<std::map<std::string, uint64_t>>();
      device.holding = one.at("holding").get<std::set<std::string>>();
    }
  } catch (const json::exception&) {
    return std::nullopt;
  }
  return report;
}

}  // namespace telar::probe
