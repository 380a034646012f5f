// The cluster's nodes in a table.
#pragma once

#include <cstdint>
#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::client {

// `wide` adds the device model, its memory, the metrics address and the version.
std::string nodes_table(const v1::ListNodesResponse& nodes, bool wide, bool header, int64_t now_seconds);

// A line for each device that nobody gets, with the reason.
std::string quarantine_lines(const v1::ListNodesResponse& nodes);

}  // namespace telar::client
