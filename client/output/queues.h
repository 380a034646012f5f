// The queues in a table.
#pragma once

#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::client {

std::string queues_table(const v1::ListQueuesResponse& queues, bool header);

}  // namespace telar::client
