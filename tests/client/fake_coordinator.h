// The fake services of a coordinator together, over real gRPC.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "tests/client/fake_jobs_service.h"
#include "tests/client/fake_nodes_service.h"

namespace telar::client {

// The services on a port of their own.
class FakeCoordinator {
 public:
  FakeCoordinator() { start("127.0.0.1:0"); }
  ~FakeCoordinator() { stop(); }
  void stop() {
    {
      const std::lock_guard lock(service.mutex);
      service.hold_streams = false;
    }
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  FakeJobsService service;
  FakeNodesService nodes;

 private:
  void start(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service);
    builder.RegisterService(&nodes);
    server_ = builder.BuildAndStart();
  }
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace telar::client
