// What a worker is told to do, derived from a stored record and nothing else: asked again, also after a restart of the
// coordinator, the answer is the same.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "server/jobs/record.pb.h"
#include "telar/v1/cluster.pb.h"

namespace telar::server::jobs {

// Nothing when the rank is not to be named to its worker any more: its process is over, all of its output is here and
// its node has told what is left of the epoch; or its node was lost. An exited rank is named with STOP, so that no
// worker can take it for one to start.
std::optional<v1::Assignment::Desired> desired(const JobRecord& record, uint32_t rank);

v1::RankPlan rank_plan(const JobRecord& record, uint32_t rank, const std::string& rendezvous_address,
                       const std::string& listen_host);

// From SIGTERM to SIGKILL: what the job's spec says, or else `usual`. Where a rank has failed the others cannot save
// any more, as that takes all of them: then it is no longer than `usual`, and short when a device has failed.
std::chrono::milliseconds stop_grace(const JobRecord& record, std::chrono::milliseconds usual);

// Whether a worker would see another assignment after the change.
bool assignments_differ(const JobRecord& before, const JobRecord& after);

}  // namespace telar::server::jobs
