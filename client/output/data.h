// What is in data, for people and programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace telar::client {

// Block style, in the order of the members; what it prints is read back to the same values.
std::string json_as_yaml(const nlohmann::ordered_json& json);

// Text from data in any bytes, safe for a terminal: line breaks and tabs stay, other control characters and bytes that
// are not UTF-8 are written as \xNN.
std::string printable(const std::string& text);

// The same in one line: line breaks and tabs as \n and \t.
std::string printable_line(const std::string& text);

struct DataProgress {
  uint64_t read_bytes = 0, total_bytes = 0;  // 0 in all: not known.
  uint64_t documents = 0, tokens = 0, skipped = 0;
  double bytes_per_second = 0;
};
// "12.3%  1.2 GiB of 9.8 GiB  1.24M documents  310M tokens  38.1 MB/s  ETA 3m12s"
std::string data_progress_line(const DataProgress& progress);

}  // namespace telar::client
