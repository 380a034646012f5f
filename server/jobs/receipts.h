// The end of an epoch, node by node: a job is over, or placed again, only when every node has said that nothing of it
// is left there, or what is. Pure, as epoch.h.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "server/jobs/draft.h"
#include "server/jobs/timeline.h"
#include "telar/v1/cluster.pb.h"

namespace telar::server::jobs {

// Takes what a heartbeat says of the end of the current epoch on its node: its receipt, or, when the worker has none of
// its ranks any more, that there is nothing.
void observe_receipt(Draft& draft, const v1::HeartbeatRequest& request);
// The node is lost: none will come. Its devices are given out again only after it has come back and told.
void waive_receipt(Draft& draft, const std::string& node);

bool has_receipt(const JobRecord& record, const std::string& node);
// The nodes of the epoch whose receipt is missing; those that are LOST owe none.
std::vector<std::string> missing_receipts(const JobRecord& record);
// Every rank is over since `longest`, and we are there to hear of it since `longest`, too.
bool receipts_overdue(const JobRecord& record, const Timeline& time, std::chrono::milliseconds longest);
// Does without: each of those nodes counts as one on which something is left.
void give_up_receipts(Draft& draft);

}  // namespace telar::server::jobs
