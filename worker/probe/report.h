// What the probe tells the daemon, once a round: one JSON object in one message.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace telar::probe {

struct DeviceReading {
  uint32_t index = 0;
  uint64_t used_bytes = 0;
  std::vector<int> pids;  // Of processes that compute on it.
  // By code (see server/cluster/device_policy.h): how often, since the start of this probe; and what holds right now.
  std::map<std::string, uint64_t> counts;
  std::set<std::string> holding;
};

struct Report {
  uint64_t round = 0;
  std::vector<DeviceReading> devices;
};

inline constexpr size_t kMostReport = 128 << 10;  // Bytes of the text.

std::string to_text(const Report& report);
std::optional<Report> parse_report(const std::string& text);  // None when it is no report.

}  // namespace telar::probe
