// One call to the coordinator with a deadline, and retries where they are safe.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "client/commands/context.h"

namespace telar::client {

// Runs `attempt` under the call timeout. It is only for requests that read, or that carry a request_id, as UNAVAILABLE
// is tried again until the timeout, saying so once on stderr: with `retry` in any case; without, where another answer
// can be expected soon, because there are several coordinators or the one there is says that it does not lead or goes
// away. UNAUTHENTICATED is tried once more with the token read again, and what was refused for a while (RetryInfo)
// after that while: neither was looked at.
absl::Status call(Context& context, bool retry, const std::function<grpc::Status(grpc::ClientContext*)>& attempt);

template <typename Request, typename Response>
using Method = grpc::Status (v1::Jobs::StubInterface::*)(grpc::ClientContext*, const Request&, Response*);

template <typename Request, typename Response>
absl::StatusOr<Response> call(Context& context, Method<Request, Response> method, const Request& request,
                              bool retry = false) {
  Response response;
  const absl::Status status = call(context, retry, [&](grpc::ClientContext* client) {
    return (context.jobs.get()->*method)(client, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::Job> get_job(Context& context, const std::string& name);
absl::StatusOr<v1::ListJobsResponse> list_jobs(Context& context,
                                               const std::vector<v1::Job::State>& states);  // All pages, of --project.

}  // namespace telar::client
