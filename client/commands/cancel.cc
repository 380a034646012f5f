#include <algorithm>
#include <ostream>
#include <vector>

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

absl::StatusOr<v1::Job> cancel_one(Context& context, const v1::Job& job, const std::string& etag) {
  v1::CancelJobRequest request;
  request.set_name(job.name());
  request.set_request_id(uuid4());
  request.set_etag(etag);
  return call(context, &v1::Jobs::StubInterface::CancelJob, request, true);
}

int cancel_array(Context& context, const std::string& array) {
  auto jobs = list_jobs(context, {});
  if (!jobs.ok()) return report(context, jobs.status());
  std::vector<v1::Job> tasks;
  for (v1::Job& job : *jobs->mutable_jobs()) {
    if (job.array() == array && !is_terminal(job.state())) tasks.push_back(std::move(job));
  }
  std::stable_partition(tasks.begin(), tasks.end(), [](const v1::Job& job) { return job.state() == v1::Job::QUEUED; });
  if (tasks.empty()) context.err() << "every task of " << id_of(array) << " has ended\n";
  int code = kOk;
  for (const v1::Job& task : tasks) {
    const auto ending = cancel_one(context, task, "");
    if (ending.ok()) {
      print_state(context, *ending);
    } else if (!absl::IsFailedPrecondition(ending.status())) {  // It ended meanwhile.
      code = report(context, ending.status());
    }
  }
  return code;
}

}  // namespace

int cancel(Context& context, const CancelOptions& options) {
  const absl::StatusOr<v1::Job> job = resolve_job(context, options.job);
  if (!job.ok()) return report(context, job.status());
  if (options.array && job->array().empty()) {
    return report(context,
                  absl::InvalidArgumentError("--array: job " + id_of(job->name()) + " is no task of an array"));
  }
  if (options.array) return cancel_array(context, job->array());
  const absl::StatusOr<v1::Job> ending = cancel_one(context, *job, options.etag);
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
