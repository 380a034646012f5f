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

  // How it is started, and how its clients get in.
  struct Options {
    server::store::EtcdAccess access;
    std::vector<std::string> arguments;  // Besides those that every one here has.
    // One of several, of equal `name=http://127.0.0.1:port` with commas between; then ready() has to be waited for.
    std::string name = "test", peer = "http://127.0.0.1:0", cluster = "test=http://127.0.0.1:0";
  };

  explicit EtcdServer(std::string folder) : EtcdServer(std::move(folder), Options()) {}
  EtcdServer(std::string folder, Options options)
      : folder_(std::move(folder)), options_(std::move(options)), port_(free_port()) {
    start();
  }
  ~EtcdServer() { stop(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  // Again after stop(), with the data and the port of before.
  void start() {
    const std::string client = (options_.access.tls.any() ? "https://" : "http://") + endpoint();
    std::vector<std::string> arguments = {"etcd",
                                          "--name",
                                          options_.name,
                                          "--data-dir",
                                          folder_,
                                          "--listen-client-urls",
                                          client,
                                          "--advertise-client-urls",
                                          client,
                                          "--listen-peer-urls",
                                          options_.peer,
                                          "--initial-advertise-peer-urls",
                                          options_.peer,
                                          "--initial-cluster",
                                          options_.cluster,
                                          "--logger",
                                          "zap",
                                          "--log-outputs",
                                          folder_ + ".log",
                                          "--log-level",
                                          "error"};
    arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    if (posix_spawn(&pid_, "/usr/bin/etcd", nullptr, nullptr, pointers.data(), environ) != 0) pid_ = 0;
    if (options_.cluster.find(',') == std::string::npos) ready();
  }
  // Waits for it.
  bool ready() const {
    server::store::EtcdClient client({endpoint()}, options_.access);
    etcdserverpb::RangeRequest request;
    request.set_key("ready");
    return client.range(request, std::chrono::steady_clock::now() + std::chrono::seconds(30)).ok();
  }
  void stop() {
    signal(SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Behind SIGSTOP it is stopped: one of its threads has to see the signal before all stop, and until then it answers.
  void signal(int number) const {
    if (pid_ <= 0) return;
    kill(pid_, number);
    if (number == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);
  }

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

 private:
  const std::string folder_;
  const Options options_;
  const int port_;
  pid_t pid_ = 0;
};

}  // namespace telar::fakes
