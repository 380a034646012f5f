#include <ostream>

#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/follow_job.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"
#include "client/output/format.h"
#include "common/process.h"

namespace telar::client {
namespace {

void print_state(Context& context, const v1::Job& job) {
  if (context.print_message(job)) {
  } else if (context.options.output == Output::kName) {
    context.out() << job.name() << "\n";
  } else {
    context.out() << id_of(job.name()) << " " << v1::Job::State_Name(job.state()) << "\n";
  }
  context.out() << std::flush;
}

}  // namespace

int cancel(Context& context, const CancelOptions& options) {
  const absl::StatusOr<v1::Job> job = resolve_job(context, options.job);
  if (!job.ok()) return report(context, job.status());
  v1::CancelJobRequest request;
  request.set_name(job->name());
  request.set_request_id(uuid4());
  request.set_etag(options.etag);
  const absl::StatusOr<v1::Job> ending = call(context, &v1::Jobs::StubInterface::CancelJob, request, true);
  if (!ending.ok()) return report(context, ending.status());
  if (!options.wait || is_terminal(ending->state())) {
    print_state(context, *ending);
    return kOk;
  }
  const JobEnd end = follow_job(context, *ending, {.quiet = true, .wait_timeout = options.wait_timeout});
  if (!end.job) return end.code;
  print_state(context, *end.job);
  return end.job->state() == v1::Job::CANCELLED ? kOk : kRefused;
}

}  // namespace telar::client
