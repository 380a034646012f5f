#include "client/output/describe.h"

#include <ostream>

#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"

namespace telar::client {

int describe(Context& context, const std::string& job) {
  const absl::StatusOr<v1::Job> found = resolve_job(context, job);
  if (!found.ok()) return report(context, found.status());
  if (context.print_message(*found)) return kOk;
  if (context.options.output == Output::kName) {
    context.out() << found->name() << "\n";
  } else {
    context.out() << describe_page(*found, context.now_seconds());
  }
  return kOk;
}

}  // namespace telar::client
