// Waits for the end of a job along its event stream: what watch, submit --watch, submit --wait and cancel --wait share.
#pragma once

#include <optional>
#include <string>

#include "client/commands/context.h"

namespace telar::client {

struct FollowOptions {
  bool quiet = false;                        // No progress, only trouble.
  std::optional<Milliseconds> wait_timeout;  // Then kTimedOut.
};

struct JobEnd {
  std::optional<v1::Job> job;  // Set when the job reached a terminal state.
  int code = 0;                // Of the job's state when it ended, else why the following ended.
};

// Resumes by sequence over lost connections. The first Ctrl-C detaches: says so, code kOk, the job goes on.
// Errors are already reported when this returns.
JobEnd follow_job(Context& context, const v1::Job& job, const FollowOptions& options);

// The closing summary, or the job with -o json | yaml.
void print_end(Context& context, const v1::Job& job);

// "detached; job goes on: telar watch ID", on stderr.
void say_detached(Context& context, const std::string& name);

}  // namespace telar::client
