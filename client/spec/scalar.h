// Text into a scalar field, read by the field's type and not by what the text looks like: `no` is a string where a
// string is wanted and false where a bool is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace telar::client {

// Wide enough for every 64-bit integer, signed or not.
using Wide = __int128;

// A decimal integer: "12", "1e6", "1.5M", "64Ki". Suffixes: k M G are powers of 1000, Ki Mi Gi of 1024. Leading zeros
// mean nothing. nullopt: not an integer, or beyond 2^100.
std::optional<Wide> parse_integer(const std::string& text);

// Sets the field, or appends when it is repeated. Enums are taken in any case, '-' as '_'. Returns "", or what is
// allowed there ("want an integer from 0 to 4294967295 (suffixes k M G Ki Mi Gi)"), the message unchanged.
std::string set_scalar(google::protobuf::Message& message, const google::protobuf::FieldDescriptor* field,
                       const std::string& text);

// "cosine, linear": an enum's values in lower case without the unspecified one.
std::string enum_values(const google::protobuf::EnumDescriptor* type);

}  // namespace telar::client
