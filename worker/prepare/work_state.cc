#include "worker/prepare/work_state.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/published_file.h"

namespace telar::prepare {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const data::ShardFiles& shard) {
  return {{"name", shard.name},
          {"documents", shard.documents},
          {"tokens", shard.tokens},
          {"bin_bytes", shard.bin_bytes},
          {"idx_bytes", shard.idx_bytes},
          {"bin_crc32c", shard.bin_crc32c},
          {"idx_crc32c", shard.idx_crc32c}};
}

data::ShardFiles shard_from(const Json& json) {
  return {json.at("name"),      json.at("documents"),  json.at("tokens"),    json.at("bin_bytes"),
          json.at("idx_bytes"), json.at("bin_crc32c"), json.at("idx_crc32c")};
}

}  // namespace

absl::Status save_state(const std::string& directory, const WorkState& state) {
  Json json = {{"request", state.request},        {"file", state.position.file},
               {"offset", state.position.offset}, {"line", state.position.line},
               {"documents", state.documents},    {"tokens", state.tokens},
               {"text_bytes", state.text_bytes},  {"empty", state.empty},
               {"skipped", state.skipped},        {"skipped_bytes", state.skipped_bytes},
               {"shards", Json::array()}};
  for (const data::ShardFiles& shard : state.shards) json["shards"].push_back(to_json(shard));
  return publish_file(directory, kStateFile, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

absl::StatusOr<std::optional<WorkState>> load_state(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kStateFile);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  try {
    const Json json = Json::parse(text.str());
    WorkState state{.request = json.at("request"),
                    .position = {json.at("file"), json.at("offset"), json.at("line")},
                    .documents = json.at("documents"),
                    .tokens = json.at("tokens"),
                    .text_bytes = json.at("text_bytes"),
                    .empty = json.at("empty"),
                    .skipped = json.at("skipped"),
                    .skipped_bytes = json.at("skipped_bytes")};
    for (const Json& shard : json.at("shards")) state.shards.push_back(shard_from(shard));
    return state;
  } catch (const Json::exception& failure) {
    return absl::DataLossError(absl::StrCat(path, ": ", failure.what(), "; remove it to begin again"));
  }
}

std::string difference(const Json& now, const Json& before) {
  for (const auto& [name, value] : now.items()) {
    const Json old = before.value(name, Json());
    if (old == value) continue;
    const auto shown = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
    if (value.is_array() && old.is_array()) {
      for (size_t i = 0; i < std::max(value.size(), old.size()); ++i) {
        const Json a = i < value.size() ? value[i] : Json(), b = i < old.size() ? old[i] : Json();
        if (a != b) return absl::StrCat(name, "[", i, "] is ", shown(a), ", was ", shown(b));
      }
    }
    return absl::StrCat(name, " is ", shown(value), ", was ", shown(old));
  }
  return "";
}

}  // namespace telar::prepare
