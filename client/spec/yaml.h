// YAML (and JSON, which is YAML) into a message, by its descriptor.
#pragma once

#include <string>

#include "client/spec/problem.h"
#include "google/protobuf/message.h"

namespace telar::client {

// Reads one document into `message`. Problems and places are appended to `reading`.
void read_yaml(const std::string& file, const std::string& text, google::protobuf::Message& message,
               SpecReading& reading);

// Reads `text` as the value of one field of `message`, named `path` in problems: a list when it starts with '[', else
// one scalar taken as it stands.
void read_yaml_value(const std::string& file, const std::string& path, const std::string& text,
                     const google::protobuf::FieldDescriptor* field, google::protobuf::Message& message,
                     SpecReading& reading);

}  // namespace telar::client
