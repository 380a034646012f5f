// `telar watch` without a job.
#pragma once

#include "client/commands/commands.h"

namespace telar::client {

// All jobs that live, as a page that is drawn anew every other second until Ctrl-C; without a terminal their table,
// once.
int watch_all(Context& context, const WatchOptions& options);

}  // namespace telar::client
