// How far a preparation has come, on the disk: what makes a killed one go on where its last shard ended.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/shard_writer.h"
#include "worker/prepare/document_reader.h"

namespace telar::prepare {

inline constexpr const char* kStateFile = ".prepare.json";

struct WorkState {
  nlohmann::ordered_json request;  // All that decides what comes out, by name. Another request cannot go on from here.
  Position position;               // Behind the last document of the last shard, or behind what was left out after it.
  uint64_t documents = 0;
  uint64_t tokens = 0;
  uint64_t text_bytes = 0;
  uint64_t empty = 0;          // Documents left out for want of text.
  uint64_t skipped = 0;        // Documents left out for a fault.
  uint64_t skipped_bytes = 0;  // Of the file that lists them.
  std::vector<data::ShardFiles> shards;
};

absl::Status save_state(const std::string& directory, const WorkState& state);
// Nothing where there is none. DATA_LOSS for a file that cannot be understood.
absl::StatusOr<std::optional<WorkState>> load_state(const std::string& directory);

// The first member that differs, as "field is 'text', was 'body'"; empty: the requests are one.
std::string difference(const nlohmann::ordered_json& now, const nlohmann::ordered_json& before);

}  // namespace telar::prepare
