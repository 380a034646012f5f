#include "client/commands/watch_all.h"

#include <optional>
#include <ostream>
#include <vector>

#include "client/commands/call.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/commands/screen.h"
#include "client/commands/stream.h"
#include "client/output/jobs.h"

namespace telar::client {
namespace {

constexpr Milliseconds kInterval{2000};

absl::StatusOr<v1::ListJobsResponse> live_jobs(Context& context) {
  return list_jobs(context, {v1::Job::QUEUED, v1::Job::STARTING, v1::Job::RUNNING, v1::Job::RESTARTING,
                             v1::Job::CANCELLING, v1::Job::FAILING});
}

int print_once(Context& context, const v1::ListJobsResponse& jobs) {
  if (context.print_message(jobs)) return kOk;
  context.out() << jobs_table(jobs, context.wide(), context.header(), context.now_seconds());
  return kOk;
}

// Whether there may be an answer again.
bool passing(const absl::Status& status) { return is_lost_connection(status) || absl::IsDeadlineExceeded(status); }

}  // namespace

int watch_all(Context& context, const WatchOptions& options) {
  absl::StatusOr<v1::ListJobsResponse> jobs = live_jobs(context);
  if (!jobs.ok()) return report(context, jobs.status());
  if (!context.terminal.live || context.options.output == Output::kJson || context.options.output == Output::kYaml) {
    return print_once(context, *jobs);
  }
  context.interrupt.arm();
  Screen screen(context.terminal);
  const Clock::Steady start = context.clock.now();
  Clock::Steady answered = start, asked = start;
  std::string note;
  while (!context.interrupt.wait_for(kTick)) {
    screen.draw(jobs_view(*jobs, note, context.now_seconds(), screen.style()));
    const Clock::Steady now = context.clock.now();
    if (options.wait_timeout && now - start >= *options.wait_timeout) return kTimedOut;
    if (now - asked < kInterval) continue;
    asked = now;
    absl::StatusOr<v1::ListJobsResponse> newer = live_jobs(context);
    if (newer.ok()) {
      jobs = std::move(newer);
      answered = context.clock.now();
      note.clear();
    } else if (passing(newer.status()) && context.clock.now() - answered < context.stream_timeout()) {
      note = "no answer from " + context.options.coordinator + ", retrying";
    } else {
      screen.leave();
      return report(context, newer.status());
    }
  }
  return kOk;
}

}  // namespace telar::client
