#include "common/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace telar {
namespace {

std::string get(int port, const std::string& path) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(write(descriptor, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t count = 0; (count = read(descriptor, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
  }
  close(descriptor);
  return text;
}

TEST(HttpServer, AnswersExactlyItsPaths) {
  auto server = HttpServer::start("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->handle("/metrics", [] { return HttpResponse{200, "text/plain", "up 1\n"}; });
  (*server)->handle("/healthz", [] { return HttpResponse{503, "text/plain", "not yet\n"}; });
  const int port = (*server)->port();
  const std::string metrics = get(port, "/metrics");
  EXPECT_NE(metrics.find("HTTP/1.1 200 OK"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\r\n\r\nup 1\n"), std::string::npos) << metrics;
  EXPECT_NE(get(port, "/healthz").find("HTTP/1.1 503"), std::string::npos);
  EXPECT_EQ(get(port, "/metrics/more").find("up 1"), std::string::npos);
  EXPECT_EQ(get(port, "/other").find("up 1"), std::string::npos);
}

TEST(HttpServer, NamesThePortThatIsTaken) {
  auto first = HttpServer::start("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const std::string address = "127.0.0.1:" + std::to_string((*first)->port());
  auto second = HttpServer::start(address);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(second.status().message(),
            "cannot listen on " + address +
                ": the port is in use or the address is not of this machine; choose another --http");
}

}  // namespace
}  // namespace telar
