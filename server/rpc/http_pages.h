// What the coordinator shows over HTTP: /metrics, /sd/workers for Prometheus' http_sd, /healthz, /readyz.
#pragma once

#include "common/http_server.h"
#include "common/pulse.h"
#include "server/jobs/job_manager.h"
#include "server/rpc/metrics.h"

namespace telar::server::rpc {

// All that is passed must outlive the server. `rounds` is the scheduler's: without them /healthz says 503, and so does
// /readyz. They ask nobody else: a worker or a client that is away is no reason to restart a coordinator.
void add_pages(HttpServer& server, const jobs::JobManager& manager, Metrics& metrics, const Pulse& rounds);

// [{"targets": ["host:port", ...], "labels": {}}]: the full list each time, as http_sd wants it.
std::string worker_targets(const std::vector<std::string>& addresses);

}  // namespace telar::server::rpc
