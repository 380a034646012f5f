// What the guard refused and when the certificate ends, for /metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/auth/guard.h"

namespace telar::server::rpc {

// `certificate`: the file with the coordinator's own; empty: none. Read at each call, so the date is that of the file
// that the next handshake uses; a file that cannot be read gives 0.
std::vector<prometheus::MetricFamily> security_figures(const auth::Guard& guard, const std::string& certificate);

}  // namespace telar::server::rpc
