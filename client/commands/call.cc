#include "client/commands/call.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/output/format.h"
#include "common/addresses.h"
#include "common/call_deadline.h"
#include "common/errors.h"

namespace telar::client {
namespace {
constexpr int kPageSize = 500;
constexpr Milliseconds kFirstDelay{100};
constexpr Milliseconds kLongestDelay{2000};
using Steady = std::chrono::steady_clock;  // The wall's clock may be set meanwhile.

// Whether somebody else, or the same one anew, is about to answer.
bool is_failing_over(const Context& context, const absl::Status& status) {
  const std::string why = reason(status);
  return split_addresses(context.options.coordinator).size() > 1 || why == "NOT_LEADER" || why == "SHUTTING_DOWN";
}

std::string retrying_line(const Context& context, const absl::Status& status) {
  if (!reason(status).empty()) return absl::StrCat(one_line(std::string(status.message())), "; retrying\n");
  return absl::StrCat("no answer from ", context.options.coordinator, ", retrying\n");
}

}  // namespace

absl::Status call(Context& context, bool retry, const std::function<grpc::Status(grpc::ClientContext*)>& attempt) {
  const auto deadline = Steady::now() + context.call_timeout();
  Milliseconds delay = kFirstDelay;
  bool said = false, renewed = false, failing_over = false;
  for (;;) {
    grpc::ClientContext client;
    const CallDeadline limit(client, deadline - Steady::now());
    const absl::Status status = from_grpc(limit.told(attempt(&client)));
    if (absl::IsUnauthenticated(status) && !renewed && context.renew_token && context.renew_token()) {
      renewed = true;
      continue;
    }
    const auto told = retry_delay(status);
    if (told && Steady::now() + *told < deadline) {
      if (context.interrupt.wait_for(std::max(*told, kFirstDelay))) return status;
      continue;
    }
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    failing_over |= is_failing_over(context, status);
    if (!retry && !failing_over) return status;
    if (Steady::now() + delay >= deadline) return status;
    if (!std::exchange(said, true)) context.err() << retrying_line(context, status) << std::flush;
    context.interrupt.wait_for(delay);
    delay = std::min(delay * 2, kLongestDelay);
  }
}

absl::StatusOr<v1::Job> get_job(Context& context, const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return call(context, &v1::Jobs::StubInterface::GetJob, request);
}

absl::StatusOr<v1::ListJobsResponse> list_jobs(Context& context, const std::vector<v1::Job::State>& states) {
  v1::ListJobsRequest request;
  if (!context.options.project.empty()) request.set_parent(context.parent());
  request.set_page_size(kPageSize);
  for (const v1::Job::State state : states) request.add_states(state);
  v1::ListJobsResponse all;
  for (;;) {
    absl::StatusOr<v1::ListJobsResponse> page = call(context, &v1::Jobs::StubInterface::ListJobs, request);
    if (!page.ok()) return page.status();
    for (v1::Job& job : *page->mutable_jobs()) *all.add_jobs() = std::move(job);
    // A token that does not move would never end.
    if (page->next_page_token().empty() || page->next_page_token() == request.page_token()) return all;
    request.set_page_token(page->next_page_token());
  }
}

}  // namespace telar::client
