// Which job the user means.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/commands/context.h"

namespace telar::client {

// `job` is an id, a full name (projects/p/jobs/j), or a label (spec.name). A label means the one live job of that
// label, or else the only job of it. NOT_FOUND: none. INVALID_ARGUMENT: the label fits several, which it lists.
absl::StatusOr<v1::Job> resolve_job(Context& context, const std::string& job);

}  // namespace telar::client
