#include "client/commands/contexts.h"

#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"

namespace telar::client {
namespace {

using Entry = std::map<std::string, std::string>;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// yaml-cpp throws; this is the edge.
absl::Status read_entry(const std::string& path, std::string& name, Entry& entry) {
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (name.empty() && root["current"]) name = root["current"].as<std::string>();
    if (name.empty()) return absl::OkStatus();
    const YAML::Node contexts = root["contexts"];
    const YAML::Node found = contexts.IsMap() ? contexts[name] : YAML::Node();
    if (!found.IsDefined() || !found.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": there is no context '", name, "' below 'contexts'"));
    }
    for (const auto& pair : found) entry[pair.first.as<std::string>()] = pair.second.as<std::string>();
  } catch (const YAML::Exception& problem) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", problem.what()));
  }
  return absl::OkStatus();
}

}  // namespace

std::string contexts_path() {
  if (const std::string told = variable("TELAR_CONTEXTS"); !told.empty()) return told;
  const std::string config = variable("XDG_CONFIG_HOME");
  return (config.empty() ? variable("HOME") + "/.config" : config) + "/telar/contexts.yaml";
}

absl::Status apply_context(const std::string& path, const std::string& wanted, const GivenOptions& given,
                           Options& options) {
  std::error_code problem;
  if (wanted.empty() && !std::filesystem::exists(path, problem)) return absl::OkStatus();
  std::string name = wanted;
  Entry entry;
  if (absl::Status status = read_entry(path, name, entry); !status.ok()) return status;
  struct Target {
    bool given;
    std::string* value;
  };
  const std::map<std::string, Target> targets = {{"coordinator", {given.coordinator, &options.coordinator}},
                                                 {"tls_ca", {given.tls_ca, &options.tls.ca}},
                                                 {"token_file", {given.token_file, &options.token_file}},
                                                 {"project", {given.project, &options.project}}};
  for (const auto& [key, value] : entry) {
    const auto found = targets.find(key);
    if (found == targets.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": context ", name, ": '", key, "' is none of coordinator, tls_ca, token_file, project"));
    }
    if (!found->second.given) *found->second.value = value;
  }
  return absl::OkStatus();
}

}  // namespace telar::client
