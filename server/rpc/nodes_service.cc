#include "server/rpc/nodes_service.h"

#include "common/errors.h"
#include "server/jobs/requests.h"
#include "server/rpc/answer.h"

namespace telar::server::rpc {
grpc::Status NodesService::CordonNode(grpc::ServerContext*, const v1::CordonNodeRequest* request, v1::Node* node) {
  const CallTimer timer(metrics_, "CordonNode");
  return answer(manager_->set_scheduling(request->name(), v1::Node::CORDONED, request->reason(),
                                         jobs::request_key("cordon", request->name(), request->request_id())),
                node);
}

grpc::Status NodesService::UncordonNode(grpc::ServerContext*, const v1::UncordonNodeRequest* request, v1::Node* node) {
  const CallTimer timer(metrics_, "UncordonNode");
  return answer(manager_->set_scheduling(request->name(), v1::Node::OPEN, "",
                                         jobs::request_key("uncordon", request->name(), request->request_id())),
                node);
}

grpc::Status NodesService::DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request, v1::Node* node) {
  const CallTimer timer(metrics_, "DrainNode");
  return answer(manager_->set_scheduling(request->name(), v1::Node::DRAINING, request->reason(),
                                         jobs::request_key("drain", request->name(), request->request_id())),
                node);
}

grpc::Status NodesService::ReleaseDevice(grpc::ServerContext*, const v1::ReleaseDeviceRequest* request,
                                         v1::Node* node) {
  const CallTimer timer(metrics_, "ReleaseDevice");
  return answer(manager_->release_device(*request), node);
}

}  // namespace telar::server::rpc
