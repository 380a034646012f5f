// Many jobs in a table.
#pragma once

#include <cstdint>
#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::client {

// `wide` adds devices, nodes, MFU, restarts, queue, priority, what it waits for and the message. Ages count from
// `now_seconds` (Unix).
std::string jobs_table(const v1::ListJobsResponse& jobs, bool wide, bool header, int64_t now_seconds);

}  // namespace telar::client
