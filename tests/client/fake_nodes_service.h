// The service of operators in the test's own process: remembers what it was asked.
#pragma once

#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "telar/v1/jobs.grpc.pb.h"

namespace telar::client {

class FakeNodesService final : public v1::Nodes::Service {
 public:
  std::vector<std::string> calls;  // "cordon a: why"
  std::vector<v1::ReleaseDeviceRequest> releases;
  grpc::Status refusal;  // Given by ReleaseDevice instead of an answer.

  grpc::Status CordonNode(grpc::ServerContext*, const v1::CordonNodeRequest* request, v1::Node* node) override {
    return answer("cordon " + request->name() + ": " + request->reason(), request->name(), v1::Node::CORDONED, node);
  }
  grpc::Status UncordonNode(grpc::ServerContext*, const v1::UncordonNodeRequest* request, v1::Node* node) override {
    return answer("uncordon " + request->name(), request->name(), v1::Node::OPEN, node);
  }
  grpc::Status DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request, v1::Node* node) override {
    return answer("drain " + request->name() + ": " + request->reason(), request->name(), v1::Node::DRAINING, node);
  }
  grpc::Status ReleaseDevice(grpc::ServerContext*, const v1::ReleaseDeviceRequest* request, v1::Node* node) override {
    releases.push_back(*request);
    if (!refusal.ok()) return refusal;
    node->set_name(request->name());
    node->set_state(v1::Node::READY);
    return grpc::Status::OK;
  }

 private:
  grpc::Status answer(const std::string& call, const std::string& name, v1::Node::Scheduling state, v1::Node* node) {
    calls.push_back(call);
    if (name == "nobody") return {grpc::StatusCode::NOT_FOUND, "node 'nobody' is not known"};
    node->set_name(name);
    node->set_scheduling(state);
    return grpc::Status::OK;
  }
};

}  // namespace telar::client
