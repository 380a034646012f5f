#include <algorithm>
#include <istream>
#include <ostream>

#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/follow_job.h"
#include "client/commands/report.h"
#include "client/output/format.h"
#include "client/output/message.h"
#include "client/output/waiting.h"
#include "client/spec/reader.h"
#include "common/process.h"

namespace telar::client {
namespace {

void print_created(Context& context, const v1::Job& job) {
  if (context.print_message(job)) {
  } else if (context.options.output == Output::kName) {
    context.out() << job.name() << "\n";
  } else {
    context.out() << id_of(job.name()) << "\n";
  }
  context.out() << std::flush;
}

// The spec as the coordinator would store it, every default filled in.
int print_dry_run(Context& context, const std::string& file, const v1::Job& job) {
  if (context.options.output == Output::kJson) {
    context.out() << to_json(job.spec());
  } else if (context.options.output != Output::kName) {
    context.out() << to_yaml(job.spec());
  }
  context.err() << dry_run_page(job, context.now_seconds()) << file << ": valid; nothing was submitted\n" << std::flush;
  return kOk;
}

int submit_array(Context& context, const SubmitOptions& options, const v1::CreateJobRequest& job,
                 const SpecReading& reading) {
  if (options.watch || options.wait) {
    return report(context, absl::InvalidArgumentError(
                               "an array is many jobs: submit it without --watch and --wait, then watch its tasks"));
  }
  v1::CreateJobArrayRequest request;
  *request.mutable_spec() = job.spec();
  request.set_parent(job.parent());
  request.set_request_id(job.request_id());
  request.set_validate_only(job.validate_only());
  const absl::StatusOr<v1::CreateJobArrayResponse> tasks =
      call(context, &v1::Jobs::StubInterface::CreateJobArray, request, true);
  const std::string file = options.file == "-" ? "standard input" : options.file;
  if (!tasks.ok()) return report_spec(context, tasks.status(), file, reading);
  if (options.dry_run && tasks->jobs_size() > 0) {
    context.err() << tasks->jobs_size() << " tasks; of the first:\n";
    return print_dry_run(context, options.file, tasks->jobs(0));
  }
  if (context.print_message(*tasks)) return kOk;
  for (const v1::Job& task : tasks->jobs()) {
    context.out() << (context.options.output == Output::kName ? task.name() : id_of(task.name())) << "\n";
  }
  context.out() << std::flush;
  return kOk;
}

}  // namespace

int submit(Context& context, const SubmitOptions& options) {
  v1::CreateJobRequest request;
  SpecReading reading = read_spec_file(options.file, context.terminal.in, *request.mutable_spec());
  for (const std::string& assignment : options.sets) {
    for (Problem& problem : set_field(assignment, *request.mutable_spec())) {
      reading.problems.push_back(std::move(problem));
    }
    reading.places.erase(assignment.substr(0, assignment.find('=')));  // The file is no longer to blame for it.
  }
  if (!options.name.empty()) {
    request.mutable_spec()->set_name(options.name);
    reading.places.erase("name");
  }
  if (!reading.problems.empty()) return report_problems(context, reading.problems);

  if (!context.options.project.empty()) request.set_parent(context.parent());
  request.set_request_id(options.request_id.empty() ? uuid4() : options.request_id);
  request.set_validate_only(options.dry_run);
  if (request.spec().has_array()) return submit_array(context, options, request, reading);
  const absl::StatusOr<v1::Job> job = call(context, &v1::Jobs::StubInterface::CreateJob, request, true);
  if (!job.ok())
    return report_spec(context, job.status(), options.file == "-" ? "standard input" : options.file, reading);
  if (options.dry_run) return print_dry_run(context, options.file, *job);
  if (!options.watch && !options.wait) {
    print_created(context, *job);
    return kOk;
  }
  // -o json and yaml describe the job once, at its end.
  const bool document = context.options.output == Output::kJson || context.options.output == Output::kYaml;
  if (!document) print_created(context, *job);
  const JobEnd end = follow_job(context, *job, {.quiet = !options.watch, .wait_timeout = options.wait_timeout});
  if (end.job && (options.watch || document)) print_end(context, *end.job);
  if (end.job && !options.watch && end.code != kOk) {
    context.err() << "error: job " << id_of(job->name()) << " " << v1::Job::State_Name(end.job->state()) << ": "
                  << one_line(end.job->message()) << "\n";
  }
  return end.code;
}

}  // namespace telar::client
