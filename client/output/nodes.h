// The cluster's nodes in a table.
#pragma once

#include <cstdint>
#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::client {

// `wide` adds the device model, its memory, labels, the metrics address, the version, and why the node is closed. FREE
// counts what may be given out: nothing of a node that does not answer or is closed.
std::string nodes_table(const v1::ListNodesResponse& nodes, bool wide, bool header, int64_t now_seconds);

// A line for each node that somebody closed and for each device that nobody gets, with the reason.
std::string closed_lines(const v1::ListNodesResponse& nodes);

}  // namespace telar::client
