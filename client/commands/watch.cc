#include "client/commands/commands.h"
#include "client/commands/follow_job.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"
#include "client/commands/watch_all.h"

namespace telar::client {

int watch(Context& context, const WatchOptions& options) {
  if (options.job.empty()) return watch_all(context, options);
  const absl::StatusOr<v1::Job> job = resolve_job(context, options.job);
  if (!job.ok()) return report(context, job.status());
  const JobEnd end = follow_job(context, *job, {.quiet = false, .wait_timeout = options.wait_timeout});
  if (end.job) print_end(context, *end.job);
  return end.code;
}

}  // namespace telar::client
