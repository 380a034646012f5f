// Pages that fill a terminal and are drawn again and again: one job, or all that live. Pure: state in, lines out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/output/job_history.h"
#include "telar/v1/jobs.pb.h"

namespace telar::client {

struct ViewStyle {
  size_t width = 80;
  size_t height = 24;
  bool unicode = false;  // Else ASCII alone, but for names and messages of others.
  bool colour = false;
};

// No line is wider, nor are there more lines than the terminal has. `age`: seconds since the job was told of so;
// `now_seconds`: Unix. What does not fit goes in this order: further ranks, earlier events, the lines farthest down.
std::vector<std::string> job_view(const v1::Job& job, const JobHistory& history, int64_t now_seconds, double age,
                                  const ViewStyle& style);

// Newest first, as they come. `note`: what is wrong with the connection; empty: nothing.
std::vector<std::string> jobs_view(const v1::ListJobsResponse& jobs, const std::string& note, int64_t now_seconds,
                                   const ViewStyle& style);

// Of select-graphic-rendition codes: red, green or yellow.
const char* state_colour(v1::Job::State state);

}  // namespace telar::client
