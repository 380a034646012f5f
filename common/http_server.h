// A few read-only pages over HTTP: /metrics for Prometheus, service discovery, liveness.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prometheus {
class Registry;
}

namespace telar {

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // Stops; waits for running handlers.
  // GET `path` exactly. The handler is called on the server's own threads.
  virtual void handle(const std::string& path, std::function<HttpResponse()> handler) = 0;
  virtual int port() const = 0;

  // "host:port"; port 0 takes a free one. ALREADY_EXISTS when the port is in use, naming it.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(const std::string& address);
};

// A page that tells whether all is well: 200 and `well`, or 503 and the message.
HttpResponse answer_of(const absl::Status& status, const std::string& well);

// The registry in Prometheus text format, as a handler for /metrics.
HttpResponse render_metrics(prometheus::Registry& registry);

}  // namespace telar
