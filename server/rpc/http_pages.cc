#include "server/rpc/http_pages.h"

#include <nlohmann/json.hpp>

namespace telar::server::rpc {

std::string worker_targets(const std::vector<std::string>& addresses) {
  nlohmann::json groups = nlohmann::json::array();
  if (!addresses.empty()) groups.push_back({{"targets", addresses}, {"labels", nlohmann::json::object()}});
  // An address is text from a worker; a byte that is no UTF-8 must not end the page by an exception.
  return groups.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_pages(HttpServer& server, const jobs::JobManager& manager, Metrics& metrics, const Pulse& rounds) {
  server.handle("/metrics", [&manager, &metrics] {
    return HttpResponse{200, "text/plain; version=0.0.4; charset=utf-8", metrics.render(manager)};
  });
  server.handle("/sd/workers", [&manager] {
    return HttpResponse{200, "application/json", worker_targets(manager.metrics_addresses())};
  });
  server.handle("/healthz", [&rounds] { return answer_of(rounds.check(), "ok\n"); });
  server.handle("/readyz", [&rounds] { return answer_of(rounds.check(), "ready\n"); });
}

}  // namespace telar::server::rpc
