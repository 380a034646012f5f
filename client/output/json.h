// JSON values for people and programs, where there is no message for what is shown.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace telar::client {

std::string json_text(const nlohmann::ordered_json& value);
// The same content as YAML, block style, in the order of the members.
std::string yaml_text(const nlohmann::ordered_json& value);

}  // namespace telar::client
