// Which nodes a job has had bad luck with: its next placement goes round them where it can.
#pragma once

#include <set>
#include <string>

#include "server/jobs/record.pb.h"

namespace telar::server::jobs {

// An epoch ended by this class of failure on that node. Only what a node can be the reason of counts: CRASH, HANG,
// DEVICE.
void add_blame(JobRecord& record, v1::FailureClass failure_class, const std::string& node);

// Nodes that three of the last eight blamed epochs are blamed on, and more than all other nodes together: where
// failures are spread over the nodes, it is the job.
std::set<std::string> avoided_nodes(const JobRecord& record);

}  // namespace telar::server::jobs
