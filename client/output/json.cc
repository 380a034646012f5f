#include "client/output/json.h"

#include "absl/strings/str_cat.h"
#include "client/output/message.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

std::string scalar(const Json& value) {
  if (value.is_string()) return yaml_scalar(value.get<std::string>());
  if (value.is_number_float()) return yaml_number(value.get<double>());
  return value.dump();  // Also what is empty or nested in a list of lists: JSON is YAML.
}

bool is_block(const Json& value) {
  if (value.is_object()) return !value.empty();
  return value.is_array() && !value.empty() && (value[0].is_object() || value[0].is_string());
}

void write(const Json& value, const std::string& indent, std::string& out) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      absl::StrAppend(&out, indent, yaml_scalar(key), ":");
      if (!is_block(member)) {
        absl::StrAppend(&out, " ", scalar(member), "\n");
        continue;
      }
      out += "\n";
      write(member, member.is_object() ? indent + "  " : indent, out);
    }
    return;
  }
  for (const Json& item : value) {
    if (!is_block(item)) {
      absl::StrAppend(&out, indent, "- ", scalar(item), "\n");
      continue;
    }
    std::string body;
    write(item, indent + "  ", body);
    absl::StrAppend(&out, indent, "- ", body.substr(indent.size() + 2));  // The first member is in the "-"'s line.
  }
}

}  // namespace

std::string json_text(const Json& value) { return value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string yaml_text(const Json& value) {
  std::string text;
  if (is_block(value)) {
    write(value, "", text);
    return text;
  }
  return scalar(value) + "\n";
}

}  // namespace telar::client
