#include "worker/train/host_memory.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

constexpr std::chrono::minutes kPatience{2};  // All come from one meeting, a moment ago.

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

absl::Status find_host_memory(const v1::RankPlan& plan, const SaveMemory& wanted, backend::KeyValueStore* store) {
  SaveMemory all = wanted;
  const int ranks = store == nullptr ? 1 : std::max(1, plan.node_ranks_size());
  if (ranks > 1) {
    const auto key = [](uint32_t rank) { return absl::StrCat("host_memory/", rank); };
    absl::Status status =
        store->put(key(plan.rank()), absl::StrCat(wanted.parameters, " ", wanted.bytes, " ", wanted.available_bytes));
    if (!status.ok()) return with_class(v1::COMMUNICATION, status);
    std::vector<std::string> keys;
    for (const uint32_t rank : plan.node_ranks()) keys.push_back(key(rank));
    const auto told = store->get(keys, kPatience);
    if (!told.ok()) return with_class(v1::COMMUNICATION, told.status());
    all = {.available_bytes = UINT64_MAX};
    for (const std::string& text : *told) {
      SaveMemory one;
      std::istringstream(text) >> one.parameters >> one.bytes >> one.available_bytes;
      all.parameters += one.parameters;
      all.bytes += one.bytes;
      all.available_bytes = std::min(all.available_bytes, one.available_bytes);
    }
  }
  if (all.bytes <= all.available_bytes) return absl::OkStatus();
  const std::string who = ranks == 1 ? "this rank saves " : absl::StrCat("the ", ranks, " ranks of this node save ");
  return with_class(
      v1::OUT_OF_MEMORY,
      absl::ResourceExhaustedError(absl::StrCat(
          "checkpoint.async: ", who, all.parameters, " parameters, of each a master and two moments of 4 bytes; ",
          all.parameters, " * 12 and padding = ", all.bytes, " bytes of host memory, but ", all.available_bytes,
          " are free; checkpoint.async: false needs none, and training waits for each save")));
}

}  // namespace telar::train
