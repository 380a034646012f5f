// What the coordinator shows over HTTP: /metrics, /sd/workers for Prometheus' http_sd, /healthz.
#pragma once

#include "common/http_server.h"
#include "server/jobs/job_manager.h"
#include "server/rpc/metrics.h"

namespace telar::server::rpc {

// `manager` and `metrics` must outlive the server.
void add_pages(HttpServer& server, const jobs::JobManager& manager, Metrics& metrics);

// [{"targets": ["host:port", ...], "labels": {}}]: the full list each time, as http_sd wants it.
std::string worker_targets(const std::vector<std::string>& addresses);

}  // namespace telar::server::rpc
