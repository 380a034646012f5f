// What the answers to people's requests have in common.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/queue.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

// What an answer is kept under; empty without a request id. `of`: whose request it is, or the job or node that it is
// about, so that nobody is shown the answer to another one for repeating its id.
inline std::string request_key(const char* method, const std::string& of, const std::string& request_id) {
  return request_id.empty() ? "" : absl::StrCat(method, of.empty() ? "" : ":", of, ":", request_id);
}

// FAILED_PRECONDITION: the job is over.
inline absl::Status terminal_error(const v1::Job& job, const char* what) {
  return error(absl::StatusCode::kFailedPrecondition, "JOB_TERMINAL",
               absl::StrCat("job '", job.name(), "' is ", v1::Job::State_Name(job.state()),
                            "; only a job that is not over can be ", what));
}

inline absl::Status unknown_node(const std::string& name) {
  return error(absl::StatusCode::kNotFound, "NODE_NOT_FOUND",
               absl::StrCat("node '", name, "' is not known; `telar nodes` lists those that are"));
}

// A name that is none of the queues is a violation of `field`; in admission_scheduling.cc.
void check_queue(const std::string& name, const std::vector<QueueConfig>& queues, const std::string& field,
                 std::vector<Violation>& found);

}  // namespace telar::server::jobs
