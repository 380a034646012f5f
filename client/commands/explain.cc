#include "client/spec/explain.h"

#include <ostream>

#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"
#include "client/output/waiting.h"

namespace telar::client {

// No label of a job has a dot in it.
bool names_field(const std::string& subject) { return subject.find('.') != std::string::npos || explain(subject).ok(); }

int explain(Context& context, const std::string& subject) {
  const absl::StatusOr<std::string> page = explain(subject);
  if (page.ok()) {
    context.out() << *page;
    return kOk;
  }
  const bool field = names_field(subject);
  const absl::StatusOr<v1::Job> job = field ? absl::StatusOr<v1::Job>(page.status()) : resolve_job(context, subject);
  if (field || absl::IsNotFound(job.status())) {
    context.err() << "error: " << std::string(page.status().message()) << (field ? "" : "; nor is it a job") << "\n";
    return kUsage;
  }
  if (!job.ok()) return report(context, job.status());
  if (context.print_message(*job)) return kOk;
  if (context.options.output == Output::kName) {
    context.out() << job->name() << "\n";
  } else {
    context.out() << explain_page(*job, context.now_seconds());
  }
  return kOk;
}

}  // namespace telar::client
