// Fields of a JSON file that must be what its format says.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"

namespace telar {

// Thrown for a value that is not what the format says: "key is value, rule". Whoever parses the file catches it, beside
// what the JSON library throws for a key that is missing or of another type.
struct MalformedField : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline uint64_t count_field(const nlohmann::ordered_json& object, const char* key) {
  const auto& value = object.at(key);
  if (!value.is_number_unsigned()) throw MalformedField(absl::StrCat(key, " is ", value.dump(), ", not a count"));
  return value.get<uint64_t>();
}

// As crc_text() writes it.
inline uint32_t crc_field(const nlohmann::ordered_json& object, const char* key) {
  const auto text = object.at(key).get<std::string>();
  const auto parsed = parse_crc(text);
  if (!parsed) throw MalformedField(absl::StrCat(key, " is ", text, ", not eight hex digits"));
  return *parsed;
}

}  // namespace telar
