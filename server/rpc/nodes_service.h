// telar.v1.Nodes: what operators decide about nodes.
#pragma once

#include "server/jobs/job_manager.h"
#include "server/rpc/metrics.h"
#include "telar/v1/jobs.grpc.pb.h"

namespace telar::server::rpc {

class NodesService final : public v1::Nodes::Service {
 public:
  NodesService(jobs::JobManager* manager, Metrics* metrics) : manager_(manager), metrics_(metrics) {}

  grpc::Status CordonNode(grpc::ServerContext* context, const v1::CordonNodeRequest* request, v1::Node* node) override;
  grpc::Status UncordonNode(grpc::ServerContext* context, const v1::UncordonNodeRequest* request,
                            v1::Node* node) override;
  grpc::Status DrainNode(grpc::ServerContext* context, const v1::DrainNodeRequest* request, v1::Node* node) override;
  grpc::Status ReleaseDevice(grpc::ServerContext* context, const v1::ReleaseDeviceRequest* request,
                             v1::Node* node) override;

 private:
  jobs::JobManager* const manager_;
  Metrics* const metrics_;
};

}  // namespace telar::server::rpc
