// A TCP socket that listens on a free port of 127.0.0.1, and accepts nobody by itself.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace telar::fakes {

class LoopbackListener {
 public:
  LoopbackListener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in self{};
    self.sin_family = AF_INET;
    self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(self);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&self), size), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&self), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(self.sin_port));
  }
  ~LoopbackListener() { close(fd_); }
  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;

  int fd() const { return fd_; }
  const std::string& address() const { return address_; }  // host:port.

 private:
  const int fd_;
  std::string address_;
};

}  // namespace telar::fakes
