#include "server/jobs/traces.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/cluster/times.h"

namespace telar::server::jobs {
namespace {

constexpr uint32_t kMostSteps = 16;  // Of one request.
// From the wish to the rank: a push to its worker, a file, and the rank's next look at it.
constexpr double kTellSeconds = 1;
constexpr double kMostExtrapolated = 10;  // Beyond that nobody knows whether it still steps.
constexpr uint64_t kInFlight = 2;         // Steps that a rank has begun before it tells of one.

v1::JobTrace* find_trace(v1::Job& job, uint64_t step) {
  for (v1::JobTrace& one : *job.mutable_traces()) {
    if (one.step() == step) return &one;
  }
  return nullptr;
}

v1::JobTrace& add_trace(v1::Job& job, uint64_t step) {
  auto& traces = *job.mutable_traces();
  if (traces.size() >= kMostTraces) {
    // The oldest that is over, or else that nobody asked for.
    auto old = std::find_if(traces.begin(), traces.end(),
                            [](const v1::JobTrace& one) { return one.state() != v1::JobTrace::WANTED; });
    if (old == traces.end()) {
      old =
          std::find_if(traces.begin(), traces.end(), [](const v1::JobTrace& one) { return one.request_id().empty(); });
    }
    traces.erase(old == traces.end() ? traces.begin() : old);
  }
  v1::JobTrace& trace = *traces.Add();
  trace.set_step(step);
  trace.set_state(v1::JobTrace::WANTED);
  return trace;
}

absl::Status step_past(const v1::Job& job, uint64_t step, const Ahead& ahead) {
  return error(absl::StatusCode::kFailedPrecondition, "STEP_PAST",
               absl::StrCat("job '", job.name(), "': step ", step, " cannot be traced any more: it is at step ",
                            ahead.at, ", and the nearest that can be had is ", ahead.nearest),
               {{"at", absl::StrCat(ahead.at)}, {"nearest", absl::StrCat(ahead.nearest)}});
}

absl::Status check_steps(const v1::Job& job, const v1::TraceJobRequest& request) {
  const uint64_t total = job.spec().schedule().steps();
  std::vector<Violation> found;
  if (request.steps() > kMostSteps) {
    found.push_back({"steps", absl::StrCat(request.steps(), " is more than ", kMostSteps)});
  }
  const uint64_t last = request.step() + std::max<uint32_t>(request.steps(), 1) - 1;
  if (request.step() > 0 && (last > total || last < request.step())) {
    found.push_back({"step", absl::StrCat(last, " is beyond the job's last one, ", total)});
  }
  return found.empty() ? absl::OkStatus() : invalid(found);
}

}  // namespace

Ahead steps_ahead(const JobRecord& record, Clock::Wall now) {
  const v1::Job& job = record.job();
  if (job.state() != v1::Job::RUNNING) {
    // Whatever it starts from is no older than its last checkpoint.
    const uint64_t at = job.state() == v1::Job::STARTING ? job.progress().step() : job.progress().checkpoint_step();
    return {at, at + kInFlight + 1};
  }
  Ahead ahead{job.progress().step(), job.progress().step() + kInFlight + 1};
  if (record.step_seconds() <= 0) return ahead;
  const std::chrono::duration<double> since = now - cluster::to_wall(job.progress().step_time());
  const double passed = std::clamp(since.count(), 0.0, kMostExtrapolated);
  ahead.at += static_cast<uint64_t>(passed / record.step_seconds());
  ahead.nearest = ahead.at + kInFlight + 1 + static_cast<uint64_t>(std::ceil(kTellSeconds / record.step_seconds()));
  return ahead;
}

absl::Status want_trace(Draft& draft, const v1::TraceJobRequest& request) {
  v1::Job& job = draft.job();
  if (absl::Status status = check_steps(job, request); !status.ok()) return status;
  const Ahead ahead = steps_ahead(draft.record(), draft.now());
  const uint64_t first = request.step() == 0 ? ahead.nearest : request.step();
  const uint64_t end = first + std::max<uint32_t>(request.steps(), 1);
  if (end - 1 > job.spec().schedule().steps()) {
    return error(absl::StatusCode::kFailedPrecondition, "JOB_ENDING",
                 absl::StrCat("job '", job.name(), "' is at step ", ahead.at, " of ", job.spec().schedule().steps(),
                              ": what is left is too little for a trace"));
  }
  int wanted = static_cast<int>(wanted_traces(job).size());
  for (uint64_t step = first; step < end; ++step) {
    v1::JobTrace* trace = find_trace(job, step);
    if (trace != nullptr && trace->state() == v1::JobTrace::MISSED && step >= ahead.nearest) {
      trace->set_state(v1::JobTrace::WANTED);  // A restart has taken the job back before it.
      ++wanted;
    } else if (trace == nullptr || trace->state() == v1::JobTrace::MISSED) {
      if (step < ahead.nearest) return step_past(job, step, ahead);
      trace = &add_trace(job, step);
      ++wanted;
    }
    trace->set_request_id(request.request_id());
  }
  if (wanted > kMostWanted) {
    return error(absl::StatusCode::kFailedPrecondition, "TOO_MANY_TRACES",
                 absl::StrCat("job '", job.name(), "': ", wanted, " traces would be under way; at most ", kMostWanted,
                              " may be at once"));
  }
  draft.touch();
  return absl::OkStatus();
}

void note_trace(Draft& draft, uint32_t rank, const v1::TraceReport& report) {
  v1::Job& job = draft.job();
  v1::JobTrace* trace = find_trace(job, report.step());
  if (trace == nullptr) trace = &add_trace(job, report.step());
  if (trace->epoch() != job.epoch()) {
    v1::JobTrace fresh;
    fresh.set_step(trace->step());
    fresh.set_request_id(trace->request_id());
    fresh.set_epoch(job.epoch());
    *trace = fresh;
  }
  if (report.state() == v1::TraceReport::RECORDED) {
    trace->set_recorded(trace->recorded() + 1);
    trace->set_bytes(trace->bytes() + report.bytes());
  } else {
    trace->set_missed(trace->missed() + 1);
    if (trace->message().empty()) trace->set_message(absl::StrCat("rank ", rank, ": ", report.message()));
  }
  const bool all = trace->recorded() + trace->missed() >= static_cast<uint32_t>(job.placement_size());
  trace->set_state(!all ? v1::JobTrace::WANTED : trace->missed() == 0 ? v1::JobTrace::RECORDED : v1::JobTrace::MISSED);
  draft.touch();
}

std::vector<uint64_t> wanted_traces(const v1::Job& job) {
  std::vector<uint64_t> steps;
  for (const v1::JobTrace& one : job.traces()) {
    if (one.state() == v1::JobTrace::WANTED) steps.push_back(one.step());
  }
  return steps;
}

}  // namespace telar::server::jobs
