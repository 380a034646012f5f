#include "worker/train/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/numbers.h"

namespace telar::train {
namespace {

// The number behind a line's first word `key`; of the first line where `key` is empty.
std::optional<uint64_t> number_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t value = 0;
    if (key.empty()) return absl::SimpleAtoi(word, &value) ? std::optional(value) : std::nullopt;  // "max": no limit.
    if (word == key) return file >> value ? std::optional(value) : std::nullopt;
    file.ignore(1 << 20, '\n');
  }
  return std::nullopt;
}

// "/system.slice/telar-worker.service"; nothing without control groups of version 2.
std::optional<std::string> control_group(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return std::nullopt;
}

}  // namespace

uint64_t available_host_memory(const std::string& root) {
  const auto kilobytes = number_in(root + "/proc/meminfo", "MemAvailable:");
  uint64_t available = kilobytes ? *kilobytes * 1024 : UINT64_MAX;
  for (auto group = control_group(root); group && group->size() > 1;) {
    const std::string folder = root + "/sys/fs/cgroup" + *group;
    const auto most = number_in(folder + "/memory.max", ""), used = number_in(folder + "/memory.current", "");
    if (most && used) {
      const uint64_t cache = number_in(folder + "/memory.stat", "inactive_file").value_or(0);
      const uint64_t held = *used - std::min(*used, cache);
      available = std::min(available, *most - std::min(*most, held));
    }
    group->resize(std::min(group->find_last_of('/'), group->size()));
  }
  return available;
}

}  // namespace telar::train
