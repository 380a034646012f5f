#include <ostream>

#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"
#include "client/output/format.h"
#include "common/process.h"

namespace telar::client {

int update(Context& context, const UpdateOptions& options) {
  const absl::StatusOr<v1::Job> job = resolve_job(context, options.job);
  if (!job.ok()) return report(context, job.status());
  v1::UpdateJobRequest request;
  request.set_request_id(uuid4());
  request.set_etag(options.etag);
  request.mutable_job()->set_name(job->name());
  v1::SchedulingSpec& wanted = *request.mutable_job()->mutable_spec()->mutable_scheduling();
  const auto change = [&request](const char* field) {
    request.mutable_update_mask()->add_paths(std::string("spec.scheduling.") + field);
  };
  if (options.queue) {
    wanted.set_queue(*options.queue);
    change("queue");
  }
  if (options.priority) {
    wanted.set_priority(*options.priority);
    change("priority");
  }
  if (options.preemptible) {
    wanted.set_preemptible(*options.preemptible);
    change("preemptible");
  }
  if (options.time_limit) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(*options.time_limit);
    wanted.set_time_limit_seconds(static_cast<uint64_t>(seconds.count()));
    change("time_limit_seconds");
  }
  if (request.update_mask().paths().empty()) {
    return report(context, absl::InvalidArgumentError(
                               "nothing to change: give --queue, --priority, --preemptible or --time-limit"));
  }
  const absl::StatusOr<v1::Job> changed = call(context, &v1::Jobs::StubInterface::UpdateJob, request, true);
  if (!changed.ok()) return report(context, changed.status());
  if (context.print_message(*changed)) return kOk;
  if (context.options.output == Output::kName) {
    context.out() << changed->name() << "\n";
    return kOk;
  }
  const v1::SchedulingSpec& now = changed->spec().scheduling();
  context.out() << id_of(changed->name()) << " queue " << one_line(now.queue()) << ", priority " << now.priority()
                << (now.preemptible() ? ", preemptible" : ", not preemptible");
  if (now.time_limit_seconds() > 0) {
    context.out() << ", at most " << duration(static_cast<double>(now.time_limit_seconds()));
  }
  context.out() << "\n";
  return kOk;
}

}  // namespace telar::client
