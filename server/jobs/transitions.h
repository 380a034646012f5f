// The life of a job, as one table.
//
//   QUEUED ----> STARTING ----> RUNNING ----> SUCCEEDED
//     ^  |--> FAILED|  |          |
//     |  |          v  v          v
//     |  |        RESTARTING, CANCELLING or FAILING
//     |  |          |             |          |
//     +--|----------+             v          v
//        +------------------> CANCELLED    FAILED
#pragma once

#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

bool legal(v1::Job::State from, v1::Job::State to);
// SUCCEEDED, FAILED or CANCELLED: every process is gone, every device free, every log complete.
bool terminal(v1::Job::State state);
// RESTARTING, CANCELLING or FAILING: processes are being ended.
bool ending(v1::Job::State state);
// Has processes, or may have: STARTING, RUNNING and those that are ending.
bool placed(v1::Job::State state);

}  // namespace telar::server::jobs
