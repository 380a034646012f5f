// What a field of the spec means, in the words of spec.proto itself: its comments are built into the program.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace telar::client {

// The page for "model.kv_heads", "model", or "" (the whole spec): type, comment, and the fields or values below.
// NOT_FOUND names the nearest field.
absl::StatusOr<std::string> explain(const std::string& path);

}  // namespace telar::client
