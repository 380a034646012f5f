// Why a job waits, and where it would run.
#pragma once

#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::client {

// What `telar explain` says of a job: state, the one reason, what would unblock it, who is in front, and where every
// device of the cluster is.
std::string explain_page(const v1::Job& job, int64_t now_seconds);

// Of a job that is only tried out: what was chosen for it, and "starts at once" with the device of each rank, or why it
// would wait.
std::string dry_run_page(const v1::Job& job, int64_t now_seconds);

// "devices, never", "quota"; empty: it does not wait, or nobody said why yet.
std::string waiting_reason(const v1::Job& job);

// The lines of a page about waiting; empty as above.
std::string waiting_block(const v1::Job& job, int64_t now_seconds);

}  // namespace telar::client
