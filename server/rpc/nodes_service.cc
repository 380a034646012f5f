#include "server/rpc/nodes_service.h"

#include "common/errors.h"

namespace telar::server::rpc {

grpc::Status NodesService::ReleaseDevice(grpc::ServerContext*, const v1::ReleaseDeviceRequest* request,
                                         v1::Node* node) {
  const CallTimer timer(metrics_, "ReleaseDevice");
  auto result = manager_->release_device(*request);
  if (result.ok()) *node = *std::move(result);
  return to_grpc(result.status());
}

}  // namespace telar::server::rpc
