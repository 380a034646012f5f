#include "client/output/jobs.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "client/output/format.h"
#include "client/output/table.h"
#include "client/output/waiting.h"

namespace telar::client {
namespace {

std::string step_of(const v1::Progress& progress) {
  return progress.total_steps() == 0 ? "-" : absl::StrCat(progress.step(), "/", progress.total_steps());
}

// An elastic job may have fewer, or more, than it asks for.
uint32_t devices_of(const v1::Job& job) {
  const v1::ParallelSpec& parallel = job.spec().parallel();
  return job.data_parallel() > 0 ? job.data_parallel() * parallel.tensor() * parallel.pipeline()
                                 : job.spec().resources().devices();
}

}  // namespace

std::string jobs_table(const v1::ListJobsResponse& jobs, bool wide, bool header, int64_t now_seconds) {
  std::vector<std::string> titles = {"JOB", "NAME", "STATE", "STEP", "LOSS", "TOKENS/S", "AGE"};
  if (wide)
    titles.insert(titles.end(),
                  {"MFU", "ETA", "DEVICES", "NODES", "EPOCH", "RESTARTS", "QUEUE", "PRIORITY", "WAITS FOR", "MESSAGE"});
  Table table(titles);
  for (const v1::Job& job : jobs.jobs()) {
    const v1::Progress& progress = job.progress();
    std::vector<std::string> row = {id_of(job.name()),
                                    or_dash(one_line(job.spec().name())),
                                    v1::Job::State_Name(job.state()),
                                    step_of(progress),
                                    loss(progress.loss()),
                                    progress.tokens_per_second() > 0 ? count(progress.tokens_per_second()) : "-",
                                    age(job.create_time(), now_seconds)};
    if (wide) {
      std::set<std::string> nodes;
      for (const auto& placed : job.placement()) nodes.insert(placed.node());
      row.insert(row.end(),
                 {progress.step() > 0 ? mfu(progress) : "-",
                  progress.eta_seconds() > 0 && !is_terminal(job.state()) ? duration(progress.eta_seconds()) : "-",
                  absl::StrCat(devices_of(job)), absl::StrCat(nodes.size()), absl::StrCat(job.epoch()),
                  absl::StrCat(job.restarts() + job.node_restarts()),
                  or_dash(one_line(job.spec().scheduling().queue())), absl::StrCat(job.spec().scheduling().priority()),
                  or_dash(waiting_reason(job)), or_dash(one_line(job.message()))});
    }
    table.add(std::move(row));
  }
  return table.text(header);
}

}  // namespace telar::client
