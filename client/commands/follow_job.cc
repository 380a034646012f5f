#include "client/commands/follow_job.h"

#include <ostream>

#include "client/commands/call.h"
#include "client/commands/exit_codes.h"
#include "client/commands/progress_display.h"
#include "client/commands/report.h"
#include "client/commands/stream.h"
#include "client/output/describe.h"
#include "client/output/format.h"

namespace telar::client {
namespace {

// Everything but the end of the job itself.
int close(Context& context, const v1::Job& job, const Followed& followed) {
  switch (followed.end) {
    case FollowEnd::kDetached:
      say_detached(context, job.name());
      return kOk;
    case FollowEnd::kTimedOut:
      context.err() << "error: job " << id_of(job.name()) << " is still " << v1::Job::State_Name(job.state())
                    << " after --wait-timeout; it goes on: telar watch " << id_of(job.name()) << "\n";
      return kTimedOut;
    case FollowEnd::kLost:
      context.err() << "error: lost the coordinator at " << context.options.coordinator << " ("
                    << one_line(std::string(followed.status.message())) << "); the job goes on: telar watch "
                    << id_of(job.name()) << "\n";
      return kLost;
    default:
      return report(context, followed.status);
  }
}

}  // namespace

JobEnd follow_job(Context& context, const v1::Job& job, const FollowOptions& options) {
  context.interrupt.arm();
  ProgressDisplay display(context, options.quiet);
  Contact contact(context, [&](const std::string& text) { display.note(text); });
  std::optional<Clock::Steady> deadline;
  if (options.wait_timeout) deadline = context.clock.now() + *options.wait_timeout;

  v1::Job last = job;
  v1::WatchJobRequest request;
  request.set_name(job.name());
  const auto open = [&](grpc::ClientContext* client, grpc::CompletionQueue* queue) {
    return context.jobs->PrepareAsyncWatchJob(client, request, queue);
  };
  const auto take = [&](v1::WatchJobResponse& response) {
    if (response.has_job()) last = std::move(*response.mutable_job());
    if (response.has_event() && response.event().sequence() > request.after_sequence()) {
      request.set_after_sequence(response.event().sequence());
      display.event(response.event());
    }
    display.progress(last);
    return true;
  };
  for (;;) {
    const auto idle = [&] { display.idle(last); };
    Followed followed = follow_stream<v1::WatchJobResponse>(context, contact, deadline, open, take, idle);
    if (followed.end == FollowEnd::kServerEnded) {
      // All events are here; ask once more for what the last of them changed.
      if (absl::StatusOr<v1::Job> now = get_job(context, job.name()); now.ok()) last = *std::move(now);
      if (is_terminal(last.state())) break;
      // Ended early: the coordinator is going down in good order.
      if (contact.wait_to_retry() && !context.interrupt.requested()) continue;
      followed.end = context.interrupt.requested() ? FollowEnd::kDetached : FollowEnd::kLost;
    }
    display.end();
    return {std::nullopt, close(context, last, followed)};
  }
  display.progress(last);
  display.end();
  return {last, exit_code(last.state())};
}

void print_end(Context& context, const v1::Job& job) {
  if (!context.print_message(job)) context.out() << summary(job);
  context.out() << std::flush;
}

void say_detached(Context& context, const std::string& name) {
  context.err() << "detached; job goes on: telar watch " << id_of(name) << "\n" << std::flush;
}

}  // namespace telar::client
