#include "common/http_server.h"

#include <CivetServer.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace telar {
namespace {

class FunctionHandler final : public CivetHandler {
 public:
  explicit FunctionHandler(std::function<HttpResponse()> handler) : handler_(std::move(handler)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const HttpResponse response = handler_();
    mg_printf(connection, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
              response.code, response.code == 200 ? "OK" : "Error", response.content_type.c_str(),
              response.body.size());
    mg_write(connection, response.body.data(), response.body.size());
    return true;
  }

 private:
  std::function<HttpResponse()> handler_;
};

class CivetHttpServer final : public HttpServer {
 public:
  explicit CivetHttpServer(const std::string& address)
      : host_(address.substr(0, address.rfind(':'))),
        server_({"listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"}) {}

  // The library looks at its stop flag once in 2 s, or when somebody connects: so we do until it has stopped.
  ~CivetHttpServer() override {
    std::atomic<bool> closed = false;
    std::thread knocking([&, to = port()] {
      for (; !closed; std::this_thread::sleep_for(std::chrono::milliseconds(10))) knock(to);
    });
    server_.close();
    closed = true;
    knocking.join();
  }

  void handle(const std::string& path, std::function<HttpResponse()> handler) override {
    handlers_.push_back(std::make_unique<FunctionHandler>(std::move(handler)));
    server_.addHandler(path + "$", *handlers_.back());
  }
  int port() const override { return const_cast<CivetServer&>(server_).getListeningPorts().at(0); }

 private:
  void knock(int to) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(to));
    if (inet_pton(AF_INET, host_.c_str(), &address.sin_addr) != 1) return;
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0) return;
    connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    close(connection);
  }

  const std::string host_;
  std::vector<std::unique_ptr<FunctionHandler>> handlers_;
  CivetServer server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address) {
  try {
    return std::make_unique<CivetHttpServer>(address);
  } catch (const CivetException&) {  // It says no more than that it did not work.
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen on ", address,
                     ": the port is in use or the address is not of this machine; choose another --http"));
  }
}

HttpResponse answer_of(const absl::Status& status, const std::string& well) {
  if (status.ok()) return {200, "text/plain; charset=utf-8", well};
  return {503, "text/plain; charset=utf-8", std::string(status.message()) + "\n"};
}

HttpResponse render_metrics(prometheus::Registry& registry) {
  return {200, "text/plain; version=0.0.4; charset=utf-8", prometheus::TextSerializer().Serialize(registry.Collect())};
}

}  // namespace telar
