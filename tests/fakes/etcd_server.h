// A real etcd on a port of its own with its data in a folder of the test's, gone with the object. Not a fake: it is
// here because several folders of tests start one.
#pragma once

#include <arpa/inet.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "server/store/etcd_client.h"

extern char** environ;

namespace telar::fakes {

class EtcdServer {
 public:
  // False: no such program on this machine (Debian package etcd-server).
  static bool installed() { return access("/usr/bin/etcd", X_OK) == 0; }

  explicit EtcdServer(std::string folder) : folder_(std::move(folder)), port_(free_port()) { start(); }
  ~EtcdServer() { stop(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  // Again after stop(), with the data and the port of before.
  void start() {
    const std::string client = "http://" + endpoint(), peer = "http://127.0.0.1:0";
    std::vector<std::string> arguments = {"etcd",
                                          "--name",
                                          "test",
                                          "--data-dir",
                                          folder_,
                                          "--listen-client-urls",
                                          client,
                                          "--advertise-client-urls",
                                          client,
                                          "--listen-peer-urls",
                                          peer,
                                          "--initial-advertise-peer-urls",
                                          peer,
                                          "--initial-cluster",
                                          "test=" + peer,
                                          "--logger",
                                          "zap",
                                          "--log-outputs",
                                          folder_ + ".log",
                                          "--log-level",
                                          "error"};
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    if (posix_spawn(&pid_, "/usr/bin/etcd", nullptr, nullptr, pointers.data(), environ) != 0) pid_ = 0;
    server::store::EtcdClient client_of_it({endpoint()});
    etcdserverpb::RangeRequest request;
    request.set_key("ready");
    ready_ = client_of_it.range(request, std::chrono::steady_clock::now() + std::chrono::seconds(30)).ok();
  }
  bool ready() const { return ready_; }
  void stop() {
    signal(SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }

 private:
  static int free_port() {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(descriptor, reinterpret_cast<sockaddr*>(&address), size);
    getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
    close(descriptor);
    return ntohs(address.sin_port);
  }

  const std::string folder_;
  const int port_;
  pid_t pid_ = 0;
  bool ready_ = false;
};

}  // namespace telar::fakes
