// Steps of a job that its ranks time op by op, from the wish to the files: all of it in Job.traces, so that a restart
// of the coordinator forgets nothing. Who is told what follows from there (wanted_traces()), and is told again until
// every rank of the gang has answered.
#pragma once

#include <cstdint>
#include <vector>

#include "server/jobs/draft.h"
#include "server/jobs/record.pb.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

// Of these, the last are kept; and so many may be under way at once.
inline constexpr int kMostTraces = 64;
inline constexpr int kMostWanted = 16;

// Where a job is, as far as one can tell between its reports, and the first step that all ranks will hear of in time.
struct Ahead {
  uint64_t at = 0;
  uint64_t nearest = 0;
};
Ahead steps_ahead(const JobRecord& record, Clock::Wall now);

// Adds what the request wants and is not there. STEP_PAST, JOB_ENDING, TOO_MANY_TRACES: FAILED_PRECONDITION;
// INVALID_ARGUMENT. Of a job that is not over.
absl::Status want_trace(Draft& draft, const v1::TraceJobRequest& request);

// A rank of the current epoch has answered.
void note_trace(Draft& draft, uint32_t rank, const v1::TraceReport& report);

// The steps that every rank of the job shall be told of.
std::vector<uint64_t> wanted_traces(const v1::Job& job);

}  // namespace telar::server::jobs
