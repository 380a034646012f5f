#include <ostream>

#include "absl/strings/ascii.h"
#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/jobs.h"
#include "client/spec/problem.h"
#include "client/spec/scalar.h"
#include "client/spec/suggest.h"

namespace telar::client {
namespace {

absl::Status unknown_state(const std::string& text) {
  return absl::InvalidArgumentError("--state: got " + quote(text) + ", want one of " +
                                    enum_values(v1::Job::State_descriptor()));
}

}  // namespace

int list(Context& context, const ListOptions& options) {
  std::vector<v1::Job::State> states;
  for (const std::string& text : options.states) {
    v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
    if (!v1::Job::State_Parse(absl::AsciiStrToUpper(text), &state) || state == v1::Job::STATE_UNSPECIFIED) {
      return report(context, unknown_state(text));
    }
    states.push_back(state);
  }
  const absl::StatusOr<v1::ListJobsResponse> jobs = list_jobs(context, states);
  if (!jobs.ok()) return report(context, jobs.status());
  if (context.print_message(*jobs)) return kOk;
  if (context.options.output == Output::kName) {
    for (const v1::Job& job : jobs->jobs()) context.out() << job.name() << "\n";
  } else if (jobs->jobs().empty()) {
    context.err() << "no jobs\n";
  } else {
    context.out() << jobs_table(*jobs, context.wide(), context.header(), context.now_seconds());
  }
  return kOk;
}

}  // namespace telar::client
