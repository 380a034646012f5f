// Any message as JSON or YAML.
#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace telar::client {

// Protobuf's own JSON with the field names of the .proto; default values are left out. Ends with a newline.
std::string to_json(const google::protobuf::Message& message);

// The same content as YAML, block style, in field order: enums in lower case, times as RFC 3339, 64-bit integers as
// numbers, text quoted where YAML could take it for something else. The spec reader reads it back to the same message.
std::string to_yaml(const google::protobuf::Message& message);

// Parts of YAML: text, quoted where need be; the shortest number that reads back to the same value (YAML 1.1 wants a
// point in one with an exponent).
std::string yaml_scalar(const std::string& text);
std::string yaml_number(double value);

}  // namespace telar::client
