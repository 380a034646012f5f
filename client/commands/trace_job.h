// `telar trace JOB`: from the wish to the files of all ranks.
#pragma once

#include "client/commands/commands.h"
#include "client/output/trace.h"

namespace telar::client {

struct FetchedTrace {
  std::optional<TraceSet> traces;  // Not joined yet. None: trouble was reported, or it was left.
  std::string name;                // "k3j9x2ab-40"
  int code = 0;
};
FetchedTrace fetch_trace(Context& context, const TraceOptions& options);

}  // namespace telar::client
