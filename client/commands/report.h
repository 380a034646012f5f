// Errors for people, one line each on stderr, and the exit code that goes with them.
#pragma once

#include "absl/status/status.h"
#include "client/commands/context.h"
#include "client/spec/problem.h"

namespace telar::client {

// "error: field: description" for every violation, else "error: message". Returns the exit code.
int report(Context& context, const absl::Status& status);

// The same for a command that reads files; DATA_LOSS is kDamaged.
int report_file(Context& context, const absl::Status& status);

// The same for a spec that the coordinator refused, with the place in `file` of each field that it sets.
int report_spec(Context& context, const absl::Status& status, const std::string& file, const SpecReading& reading);

// "error: file:line:col: ..." for each problem; always kUsage.
int report_problems(Context& context, const std::vector<Problem>& problems);

int exit_code(const absl::Status& status);
int exit_code(v1::Job::State state);  // Of a terminal state.

}  // namespace telar::client
