// The words of an error, for matchers.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace telar::fakes {

inline std::string message_of(const absl::Status& status) { return std::string(status.message()); }

}  // namespace telar::fakes
